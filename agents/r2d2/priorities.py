"""The priorities of sequences, and those that actors give to new ones."""

from types import ModuleType

import jax.numpy as jnp
import numpy as np

from agents.r2d2.config import R2d2Config
from agents.r2d2.rescaling import rescale, restore
from agents.sequences import n_step_windows, skip_rows
from replay.steps import Array, Steps


def sequence_priorities(error: Array, valid: Array, config: R2d2Config, xp: ModuleType = jnp) -> Array:
    """Mixes eta max|error| + (1 - eta) mean|error| over the valid rows (section 2.3). [K, B] -> [B] float32.

    `xp` is jax.numpy, or numpy to compute outside of JAX.
    """
    size = xp.where(valid, xp.abs(error), 0.0)
    mean = xp.sum(size, axis=0) / xp.maximum(xp.sum(valid.astype("float32"), axis=0), 1.0)
    mixed = config.priority_mix * xp.max(size, axis=0) + (1.0 - config.priority_mix) * mean
    return (mixed + config.priority_floor).astype("float32")


def actor_priorities(steps: Steps, config: R2d2Config) -> Array:
    """Priorities of new sequences [L, B], from what the network said as it acted. [B] float32.

    Plain numpy, for it runs in the actor's loop. The learner's errors differ: its target network values the windows'
    ends, and its recurrent states were made by newer weights.
    """
    replay = config.replay
    steps = skip_rows(steps._replace(observation=()), replay.burn_in)
    windows = n_step_windows(
        steps,
        rows=replay.trace,
        n_step=replay.n_step,
        discount=config.discount,
        reward_clip=config.reward_clip,
        xp=np,
    )
    value = restore(np.take_along_axis(steps.extras["q_max"], windows.bootstrap, axis=0))
    target = rescale(windows.reward + windows.discount * value)
    trained = slice(replay.trace)
    return sequence_priorities(target - steps.extras["q_taken"][trained], steps.valid[trained], config, np)
