"""A corridor to walk, in both libraries: small enough to work out by hand, with an end that terminates and a limit.

From a random cell below `start_below`, action 1 goes one cell on and action 0 stays. A step pays 1.5. At cell `length`
the task has ended; after `limit` steps the episode is cut.
"""

from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

LENGTH, LIMIT = 3, 5
REWARD = 1.5


class GymnasiumCorridor(gymnasium.Env[Any, Any]):
    """Shows its cell and the steps taken, float64 [2]."""

    def __init__(self, length: int = LENGTH, limit: int = LIMIT, start_below: int = 1) -> None:
        self.observation_space = spaces.Box(0.0, 100.0, (2,), np.float64)
        self.action_space = spaces.Discrete(2)
        self._length, self._limit, self._start_below = length, limit, start_below

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._cell, self._steps = int(self.np_random.integers(self._start_below)), 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self._cell, self._steps = self._cell + int(action), self._steps + 1
        return self._see(), REWARD, self._cell >= self._length, self._steps >= self._limit, {}

    def _see(self) -> Any:
        return np.array([self._cell, self._steps], np.float64)


class NestedCorridor(GymnasiumCorridor):
    """Shows a dict in a dict: a picture, uint8, and an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            {
                "steps": spaces.Discrete(100),
                "eye": spaces.Dict({"picture": spaces.Box(0, 255, (4, 2), np.uint8), "cell": spaces.MultiBinary(4)}),
            }
        )

    def _see(self) -> Any:
        cell = np.eye(4, dtype=np.int8)[self._cell]
        return {"steps": self._steps, "eye": {"picture": np.full((4, 2), self._cell, np.uint8), "cell": cell}}


class Dial(gymnasium.Env[Any, Any]):
    """Shows the action it got: a [1, 2] box between (-1, -0.1) and (1, 0.1), float64."""

    def __init__(self) -> None:
        self.action_space = spaces.Box(np.array([[-1.0, -0.1]]), np.array([[1.0, 0.1]]), dtype=np.float64)
        self.observation_space = spaces.Box(-100.0, 100.0, (1, 2), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((1, 2)), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return action, 0.0, False, False, {}


class Tuples(GymnasiumCorridor):
    """A space that no agent can be shown."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


class DmCorridor(dm_env.Environment):
    """The same corridor; shows a nested dict where `nested`."""

    def __init__(
        self, seed: int, length: int = LENGTH, limit: int = LIMIT, start_below: int = 1, nested: bool = False
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._length, self._limit, self._start_below, self._nested = length, limit, start_below, nested
        self.closed = 0

    def reset(self) -> dm_env.TimeStep:
        self._cell, self._steps = int(self._random.integers(self._start_below)), 0
        return dm_env.restart(self._see())

    def step(self, action: Any) -> dm_env.TimeStep:
        self._cell, self._steps = self._cell + int(action), self._steps + 1
        if self._cell >= self._length:
            return dm_env.termination(REWARD, self._see())
        if self._steps >= self._limit:
            return dm_env.truncation(REWARD, self._see())
        return dm_env.transition(REWARD, self._see())

    def observation_spec(self) -> Any:
        cell = specs.BoundedArray((2,), np.float64, 0.0, 100.0)
        return {"where": {"cell": cell}, "steps": specs.Array((), np.int64)} if self._nested else cell

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)

    def close(self) -> None:
        self.closed += 1

    def _see(self) -> Any:
        cell = np.array([self._cell, self._steps], np.float64)
        return {"where": {"cell": cell}, "steps": self._steps} if self._nested else cell


def make_unseeded(length: int = LENGTH) -> DmCorridor:
    """Takes no seed."""
    return DmCorridor(0, length)


def make_nothing() -> None:
    """Isn't an environment."""
