"""The rows that travel through replay, and the batch that comes out of it."""

from typing import Any, NamedTuple

Array = Any  # numpy on the way in, jax on the way out
Tree = Any  # an array, or a dict of them


class Steps(NamedTuple):
    """Consecutive rows, time-major. Row t: what was seen, what was done, what came back.

    Of the last row of a stored sequence only `observation` and `first` mean anything (it is there to bootstrap from);
    its other fields are zero or unused.
    """

    observation: Tree  # [T, B, *obs]
    action: Array  # [T, B] int32 or [T, B, A] float32, chosen from observation[t]
    reward: Array  # [T, B] float32, came back for action[t]
    first: Array  # [T, B] bool, observation[t] begins an episode
    terminated: Array  # [T, B] bool, action[t] ended the task: the next value is 0
    truncated: Array  # [T, B] bool, a limit cut the episode after action[t]: the value of observation[t+1] still counts
    valid: (
        Array  # [T, B] bool, False where no action was taken: observation[t] is an episode's last, or row t is padding
    )
    version: Array  # [T, B] int32, version (learner step) of the weights that chose action[t]
    extras: dict[str, Array]  # [T, B, ...] what the agent's act() asked to store beside each step


class SampleInfo(NamedTuple):
    """Where a batch came from. All [B]."""

    probability: Array  # float32, the item's probability under priority^alpha over all shards together
    correction: (
        Array  # float32, that probability over the density it was really drawn with (shards may answer unevenly)
    )
    items: Array  # int32, items in all shards together when it was drawn


class Batch(NamedTuple):
    """What an agent's update() gets."""

    steps: Steps  # [T, B, ...], T = ReplaySpec.sequence_length
    state: Tree  # [B, ...] what the agent stored at the first row of each sequence, () if nothing
    info: SampleInfo
