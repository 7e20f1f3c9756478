"""The whole plug-in interface: a record of pure functions. The role loops know nothing else of an algorithm."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from replay.spec import ReplaySpec
from replay.steps import Array, Batch, Steps, Tree

Key = jax.Array
Params = Any
ActorState = Any  # any pytree of arrays; its leaves have the environments on axis 0, or no such axis (keys)
LearnerState = Any  # any pytree of arrays


class TimeStep(NamedTuple):
    """What B environments just showed. When an episode has ended, the next step of that environment ignores its action
    and shows the first observation of a new one.
    """

    observation: Tree  # [B, *obs]
    reward: Array  # [B] float32, 0 where first
    first: Array  # [B] bool, the observation begins an episode
    terminated: Array  # [B] bool, the episode's task ended with this observation
    truncated: Array  # [B] bool, a limit ended it with this observation


class ActorOutput(NamedTuple):
    """What act() answers."""

    action: Array  # [B] int32 or [B, A] float32
    extras: dict[str, Array]  # [B, ...] stored beside each step and given back in Steps.extras


class Fleet(NamedTuple):
    """Which part of all the program's environments an actor has: the `environments` from `first` on."""

    actor: int  # which one this is, of those of its kind
    actors: int  # of its kind
    environments: int  # B, in each of them
    before: int = 0  # environments of actors of another kind, that come first
    after: int = 0  # and of those that come last

    @property
    def first(self) -> int:
        """The number of this actor's first environment."""
        return self.before + self.actor * self.environments

    @property
    def total(self) -> int:
        """Environments in the whole program."""
        return self.before + self.actors * self.environments + self.after


class Update(NamedTuple):
    """What update() says beside the new state."""

    metrics: dict[str, Array]  # scalars; the loss is "total"
    priorities: Array | None  # [B] float32 >= 0, new priorities of the batch; None where the agent has none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent:
    """All that actors and the learner need of an algorithm: one spec and a few pure functions.

    Keys go in; states carry the keys they need later, and each is used once. Functions are traced by jax.jit: no
    Python side effects, no float64.
    """

    replay: ReplaySpec
    init_actor: Callable[[Key, Fleet], ActorState]
    act: Callable[[Params, ActorState, TimeStep], tuple[ActorOutput, ActorState]]  # explores; jitted by the actor loop
    act_greedily: Callable[[Params, ActorState, TimeStep], tuple[ActorOutput, ActorState]]  # for the evaluator
    init_learner: Callable[[Key], LearnerState]
    update: Callable[[LearnerState, Batch], tuple[LearnerState, Update]]  # jitted by the learner loop
    actor_params: Callable[[LearnerState], Params]  # what is published to the actors
    initial_priorities: Callable[[Steps], Array] | None = (
        None  # Steps [T, B] -> [B]: of new items, computed by the actor
    )
    stored_state: Callable[[ActorState], Tree] | None = None  # [B, ...], kept at the first row of each sequence
