"""Rows of one environment, spelled out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from replay.steps import Steps


def rows(
    reward: Sequence[float],
    *,
    observation: Sequence[float] | None = None,
    action: Sequence[int] | None = None,
    terminated: Sequence[int] = (),
    truncated: Sequence[int] = (),
    padding: Sequence[int] = (),
    extras: dict[str, Any] | None = None,
) -> Steps:
    """Rows [T, 1] with observations [T, 1, 1].

    `terminated`, `truncated` and `padding` are the numbers of such rows. The row after an end shows the episode's last
    observation, so it isn't valid; the next episode begins with the row after that.
    """
    length = len(reward)

    def flags(numbers: Sequence[int]) -> np.ndarray[Any, Any]:
        return np.isin(np.arange(length), numbers)[:, None]

    ends = [*terminated, *truncated]
    return Steps(
        observation=np.asarray([0.0] * length if observation is None else observation, np.float32)[:, None, None],
        action=np.asarray([0] * length if action is None else action, np.int32)[:, None],
        reward=np.asarray(reward, np.float32)[:, None],
        first=flags([end + 2 for end in ends]),
        terminated=flags(terminated),
        truncated=flags(truncated),
        valid=~flags([*(end + 1 for end in ends), *padding]),
        version=np.zeros((length, 1), np.int32),
        extras={} if extras is None else extras,
    )
