"""The priorities that actors give to new items, from what their network said as it acted."""

import numpy as np

from agents.apex_dqn.config import ApexConfig
from agents.sequences import n_step_windows
from replay.steps import Array, Steps


def actor_priorities(steps: Steps, config: ApexConfig) -> Array:
    """Absolute n-step TD errors (Horgan et al. 2018, algorithm 1), of the rows trained on the largest. [B] float32.

    Plain numpy, for it runs at every environment step, where a call of a jitted function would cost more than this.
    """
    windows = n_step_windows(
        steps,
        rows=config.replay.trace,
        n_step=config.replay.n_step,
        discount=config.discount,
        reward_clip=config.reward_clip,
        xp=np,
    )
    value = np.take_along_axis(steps.extras["q_max"], windows.bootstrap, axis=0)
    trained = slice(config.replay.trace)
    error = np.abs(windows.reward + windows.discount * value - steps.extras["q_taken"][trained])
    largest = np.where(steps.valid[trained], error, 0.0).max(axis=0)
    return np.asarray(largest + config.priority_floor, np.float32)
