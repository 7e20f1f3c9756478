"""Asynchronous environments of a library that has none: single ones, stepped by a pool of threads.

Worth it where a step waits for something or leaves Python's lock; EnvPool has its own way, and is not wrapped.
"""

import functools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from agents.agent import TimeStep
from launch.environments.protocol import Environments, Episode
from replay.steps import Array


class ThreadedEnvironments:
    """Single environments; the `batch_size` that are ready first are received together."""

    def __init__(self, singles: Sequence[Environments], batch_size: int, threads: int) -> None:
        self._singles = tuple(singles)
        self._batch_size = batch_size
        self._threads = ThreadPoolExecutor(threads, "environments")
        self._ready: queue.SimpleQueue[tuple[int, TimeStep | Exception]] = queue.SimpleQueue()

    @property
    def num(self) -> int:
        """How many environments."""
        return len(self._singles)

    def start(self) -> None:
        """Begins a new episode everywhere."""
        for index, single in enumerate(self._singles):
            self._threads.submit(self._take, index, single.reset)

    def receive(self) -> tuple[TimeStep, Array]:
        """What the environments that were ready first show, [M, ...], and which these are, [M] int32.

        Raises:
            Exception: what an environment raised.
        """
        ids, timesteps = [], []
        for _ in range(self._batch_size):
            index, timestep = self._ready.get()
            if isinstance(timestep, Exception):
                raise timestep
            ids.append(index)
            timesteps.append(timestep)
        together: TimeStep = jax.tree.map(lambda *leaves: np.concatenate(leaves), *timesteps)
        return together, np.asarray(ids, np.int32)

    def send(self, action: Array, ids: Array) -> None:
        """Steps the environments `ids` [M] with actions [M, ...]; returns at once."""
        for place, index in enumerate(ids.tolist()):
            step = functools.partial(self._singles[index].step, action[place : place + 1])
            self._threads.submit(self._take, index, step)

    def episodes(self) -> list[Episode]:
        """The episodes that finished since the last call."""
        return [
            episode._replace(environment=index)
            for index, single in enumerate(self._singles)
            for episode in single.episodes()
        ]

    def close(self) -> None:
        """Ends the threads, after the steps under way, and closes the environments."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for single in self._singles:
            single.close()

    def _take(self, index: int, step: Callable[[], TimeStep]) -> None:
        try:
            self._ready.put((index, step()))
        except Exception as error:
            self._ready.put((index, error))
