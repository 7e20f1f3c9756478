"""Items into one replay shard: connected with a deadline, and with a bound on what it has not confirmed."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import reverb
from absl import logging

from replay.layout import STATE, Layout
from replay.reachable import listens
from replay.stream import leave_behind
from replay.tables import TRAJECTORIES

BYTES_IN_FLIGHT = 64 * 2**20  # of new data that one shard may have unconfirmed; more would only wait in memory
CONNECT_TIMEOUT = 0.3  # seconds a shard's port has to answer
INFO_TIMEOUT = 2  # whole seconds a server that answers has to tell its tables
RETRY_FIRST, RETRY_LAST = 0.25, 5.0  # seconds between tries to connect, doubling: a try may block an actor
PROBE_MS = 1  # the shortest timeout; Reverb takes 0 for "no timeout"


def in_flight_bound(layout: Layout, items_in_flight: int) -> int:
    """Items that one shard may have unconfirmed: `items_in_flight`, but no more than 64 MiB of new data."""
    return max(1, min(items_in_flight, BYTES_IN_FLIGHT // (layout.stride * layout.unit_nbytes)))


class ShardWriter:
    """The stream to one shard. A Reverb stream lives as long as its writer, through restarts of the server.

    Attributes:
        address: "host:port".
        position: how many units this stream has got, or has missed before: the number of the next one.
        created: items given to Reverb.
        unconfirmed: at most so many of them are not in the table yet.
        lost: items that were given to a stream which then failed for good.
        stalled: it took no item for a while when it was last asked to.
    """

    def __init__(self, address: str, layout: Layout, environments: int, bound: int) -> None:
        self.address = address
        self.position = 0
        self.created = self.unconfirmed = self.lost = 0
        self.stalled = False
        self._layout, self._bound = layout, bound
        self._keep_alive = environments * layout.units  # appends that items may reach back
        back = [-1 - environments * unit for unit in reversed(range(layout.units))]  # environments take turns
        self._columns = {name: [back[layout.context]] if name == STATE else back for name in layout.signature}
        self._writer: Any = None
        self._history: Mapping[str, Any] = {}
        self._client: Any = None
        self._retry_at, self._retry_after = 0.0, RETRY_FIRST

    @property
    def connected(self) -> bool:
        """Whether there is a stream; its server may be gone since."""
        return self._writer is not None

    def connect(self) -> bool:
        """Makes the stream if there is none, and it isn't too early for another try. Blocks for 2.3 s at most.

        Raises:
            ValueError: if the server has no such table.
        """
        if self._writer is not None:
            return True
        if time.monotonic() < self._retry_at or not self._answers():
            return False
        try:
            self._client = self._client or reverb.Client(self.address)
            info = self._client.server_info(timeout=INFO_TIMEOUT)  # caches the signature: else the next call may block
            if TRAJECTORIES not in info:
                raise ValueError(
                    f"The replay shard at {self.address} has no table {TRAJECTORIES!r}, only {sorted(info)}. Is it "
                    f"another server? Check the addresses."
                )
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=self._keep_alive)
        except (reverb.errors.ReverbError, RuntimeError) as error:
            self._put_off()
            logging.warning("Replay shard %s answers, but gave no stream: %s", self.address, error)
            return False
        for name in self._columns:
            self._writer.configure((name,), num_keep_alive_refs=self._keep_alive, max_chunk_length=1)
        self.position, self._retry_after = 0, RETRY_FIRST
        return True

    def append(self, columns: Mapping[str, Any]) -> None:
        """Appends one environment's unit; its arrays are copied at once. Never waits."""
        self._writer.append(columns)
        self.position += 1

    def create_item(self, priority: float) -> None:
        """Makes an item of the last units of the environment whose unit was appended last. Never waits.

        Raises:
            ValueError: if the table's signature is another.
        """
        self._create_item(priority, self._columns)

    def _create_item(self, priority: float, columns: Mapping[str, list[int]]) -> None:
        """Makes an item of what was appended so far back."""
        history = self._history or self._writer.history
        self._history = history
        item = {name: history[name][back] for name, back in columns.items()}
        self._writer.create_item(TRAJECTORIES, priority, item)
        self.created += 1
        self.unconfirmed += 1

    @property
    def full(self) -> bool:
        """Whether it may have to be waited for."""
        return self.unconfirmed >= self._bound

    def has_room(self, seconds: float = 0.0) -> bool:
        """Whether it takes another item, waiting up to so many seconds until it does."""
        if self._writer is None:
            return False
        if not self.full:
            self.stalled = False
            return True
        # Wait for a quarter of the bound, so that not every item waits; if that takes too long, one is enough.
        wanted = (self._bound * 3 // 4, max(PROBE_MS, int(seconds * 1000))), (self._bound - 1, PROBE_MS)
        self.stalled = not any(self._flush(least, timeout) for least, timeout in wanted)
        return not self.stalled

    def flush(self, seconds: float) -> bool:
        """Waits until everything is confirmed; whether it is."""
        return self._writer is None or self.unconfirmed == 0 or self._flush(0, max(PROBE_MS, int(seconds * 1000)))

    def count_unconfirmed(self) -> int:
        """Makes `unconfirmed` exact, by halving: takes some milliseconds."""
        low, high = 0, self.unconfirmed
        while self._writer is not None and low < high:
            middle = (low + high) // 2
            if self._flush(middle, PROBE_MS):
                high = min(middle, self.unconfirmed)
            else:
                low = middle + 1
        self.unconfirmed = min(high, self.unconfirmed)
        return self.unconfirmed

    def fail(self, error: Exception) -> None:
        """Gives the stream up: Reverb doesn't mend one that got an error. What it hadn't confirmed may be lost."""
        logging.error(
            "Replay shard %s: its stream failed, %d items may be lost: %s", self.address, self.unconfirmed, error
        )
        self.lost += self.unconfirmed
        self.unconfirmed = 0
        self._drop()
        self._put_off()

    def why(self) -> str:
        """Why it takes nothing now."""
        if not self._answers(put_off=False):
            return "doesn't answer"
        if self._writer is None:
            return "answers, but gave no stream yet"
        waits = f"{self.unconfirmed} of {self._bound} items unconfirmed"
        return f"answers, but has {waits} (it is full, or waits for the learner to sample)"

    def renew(self) -> None:
        """Ends the stream, if nothing of it is on its way; connect() makes another one."""
        if self._writer is not None and self.flush(0.0):
            self._drop()

    def close(self) -> None:
        """Ends the stream without waiting. What isn't confirmed yet stays counted in `unconfirmed`."""
        self._drop()

    def _flush(self, least: int, timeout_ms: int) -> bool:
        try:
            self._writer.flush(block_until_num_items=least, timeout_ms=timeout_ms)
        except reverb.errors.DeadlineExceededError:
            return False
        except (reverb.errors.ReverbError, RuntimeError) as error:
            self.fail(error)
            return False
        self.unconfirmed = min(self.unconfirmed, least)
        return True

    def _answers(self, put_off: bool = True) -> bool:
        answers = listens(self.address, CONNECT_TIMEOUT)
        if not answers and put_off:
            self._put_off()
        return answers

    def _put_off(self) -> None:
        self.stalled = True
        self._retry_at = time.monotonic() + self._retry_after
        self._retry_after = min(2 * self._retry_after, RETRY_LAST)

    def _drop(self) -> None:
        writer, self._writer, self._history = self._writer, None, {}
        if writer is None:
            return
        if self._answers(put_off=False):
            writer.close()
        else:
            leave_behind(writer)


def describe(shards: Sequence[ShardWriter]) -> str:
    """Which shards are waited for, and why."""
    return "; ".join(f"{shard.address} {shard.why()}" for shard in shards)


def checked_priorities(priorities: Any, wanted: np.ndarray[Any, Any], rows: int, length: int) -> list[float]:
    """Priorities [B] that Reverb can take. One bad number would stop the whole table for good.

    Args:
        priorities: [B] what the agent's initial_priorities() gave.
        wanted: [B] bool, where an item will be made.
        rows: appended so far, for the message.
        length: rows of a sequence.

    Raises:
        ValueError: for another shape, or one that is not finite or negative.
    """
    array = np.asarray(priorities, np.float64)
    if array.shape != wanted.shape:
        raise ValueError(
            f"initial_priorities gave an array of shape {array.shape}, want {wanted.shape}: one a sequence."
        )
    bad = np.flatnonzero(wanted & ~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise ValueError(
            f"initial_priorities gave {array[bad[0]]} for environment {bad[0]}, rows {rows - length}..{rows - 1} "
            f"({bad.size} of {len(array)} are bad): a priority must be finite and >= 0, or it would stop the replay "
            f"table for good. Nothing was written for these rows."
        )
    return [float(priority) for priority in array]
