"""One row of replay from what the environments showed before and after it."""

import numpy as np

from agents.agent import ActorOutput, TimeStep
from replay.steps import Array, Steps


def row_of(timestep: TimeStep, output: ActorOutput, following: TimeStep, version: Array) -> Steps:
    """The row of one step [B, ...]: what was seen and done, and what the following step says came of it.

    `version` is that of the weights which acted, [B] int32.
    """
    return Steps(
        observation=timestep.observation,
        action=np.asarray(output.action),
        reward=following.reward,
        first=timestep.first,
        terminated=following.terminated,
        truncated=following.truncated,
        valid=~(timestep.terminated | timestep.truncated),
        version=version,
        extras={name: np.asarray(value) for name, value in output.extras.items()},
    )
