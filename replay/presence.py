"""Which shards answer, and which have stopped to."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

SILENCE_S = 5.0  # after so long without an answer a shard counts as stalled
ROUNDS = 8  # times that every shard could have answered meanwhile, where the others do
LOG_S = 10.0

ndarray = np.ndarray[Any, Any]


class Presence:
    """Told of every answer; says who is missing. Any thread may ask.

    A learner that is slow isn't the shards' fault: a shard is missing only if nothing came from it for SILENCE_S in
    which the reader waited for data, or while the others could answer ROUNDS times each.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        now = time.monotonic()
        self._addresses = tuple(addresses)
        self._lock = threading.Lock()
        self._heard = [now] * len(addresses)  # when each last answered
        self._heard_waiting = [0.0] * len(addresses)  # seconds the reader had waited by then
        self._batches = [0] * len(addresses)  # batches that came since
        self._waiting_since: float | None = now
        self._waited = 0.0
        self._next_log = now + LOG_S

    def answered(self, counts: ndarray) -> None:
        """A batch came, with so many samples of each shard."""
        now = time.monotonic()
        with self._lock:
            waited = self._waited_until(now)
            for shard, count in enumerate(counts):
                self._batches[shard] += 1
                if count:
                    if self._is_missing(shard, now, waited):
                        logging.info("replay shard %s answers again", self._addresses[shard])
                    self._heard[shard], self._heard_waiting[shard], self._batches[shard] = now, waited, 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While the reader does something else than to wait for shards."""
        with self._lock:
            self._waited, self._waiting_since = self._waited_until(time.monotonic()), None
        try:
            yield
        finally:
            with self._lock:
                self._waiting_since = time.monotonic()

    def missing(self) -> tuple[str, ...]:
        """Addresses of the shards that have stopped to answer."""
        now = time.monotonic()
        with self._lock:
            waited = self._waited_until(now)
            return tuple(
                address for shard, address in enumerate(self._addresses) if self._is_missing(shard, now, waited)
            )

    def log(self) -> None:
        """Says every ten seconds who is missing, and for how long."""
        now = time.monotonic()
        if now < self._next_log:
            return
        missing = self.missing()
        if missing:
            self._next_log = now + LOG_S
            times = dict(zip(self._addresses, self._heard, strict=True))
            logging.warning(
                "replay gives nothing from %s: empty, short of new items, or gone",
                ", ".join(f"{address} (for {now - times[address]:.0f} s)" for address in missing),
            )

    def _waited_until(self, now: float) -> float:
        return self._waited + (now - self._waiting_since if self._waiting_since is not None else 0.0)

    def _is_missing(self, shard: int, now: float, waited: float) -> bool:
        if waited - self._heard_waiting[shard] >= SILENCE_S:
            return True
        return self._batches[shard] >= ROUNDS * len(self._addresses) and now - self._heard[shard] >= SILENCE_S
