"""Returns and lengths of episodes, kept for all environments at once."""

from typing import Any

import numpy as np

from launch.environments.protocol import Episode
from replay.steps import Array


class EpisodeRecorder:
    """Sums the rewards of B environments; its cost on a step without an episode's end is one addition."""

    def __init__(self, num: int) -> None:
        self._returns = np.zeros(num, np.float64)
        self._steps = 0  # calls of add()
        self._begun = np.zeros(num, np.int64)  # self._steps at the episode's first observation
        self._finished: list[Episode] = []

    def reset(self) -> None:
        """Forgets the episodes under way."""
        self._returns[:] = 0.0
        self._begun[:] = self._steps

    def add(self, reward: Array, ids: Any = slice(None)) -> None:
        """Adds one step's rewards [B], 0 where an episode begins; or of the environments `ids` [M] alone."""
        self._returns[ids] += reward
        self._steps += 1

    def finish(self, ended: Array, lengths: Array | None = None, ids: Array | None = None) -> None:
        """Reports the episodes of the environments where `ended` [B] bool, or [M] of the environments `ids`. Their
        lengths are those given, for a library that counts otherwise, or the steps added since their first observations.
        """
        for place in ended.nonzero()[0].tolist():  # few: cheaper one by one than by masks
            index = place if ids is None else int(ids[place])
            length = self._steps - self._begun[index] if lengths is None else lengths[place]
            self._finished.append(Episode(float(self._returns[index]), int(length), index))
            self._returns[index] = 0.0
            self._begun[index] = self._steps + 1  # the next step shows the first observation

    def take(self) -> list[Episode]:
        """The episodes reported since the last call."""
        finished, self._finished = self._finished, []
        return finished
