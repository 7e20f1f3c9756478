"""New priorities on their way back to the shards that own the items."""

import collections
import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import reverb
from absl import logging

from replay.background import Patience, Threads
from replay.placing import own_rows
from replay.tables import TRAJECTORIES

ndarray = np.ndarray[Any, Any]
RETRY_S = 1.0
NOTHING = object()
SHOWN = 5  # bad priorities that a log line names


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PriorityCounts:
    """What became of the priorities so far."""

    sent: int  # the shard took them; it ignores those of items that it no longer has
    dropped: int  # a shard was too slow to take them, or refused them
    invalid: int  # nan, infinite or negative: never sent


class PriorityUpdater:
    """Routes priorities to their shards. One thread reads the arrays, one for each shard sends."""

    def __init__(self, addresses: Sequence[str], *, capacity: int = 64) -> None:
        """`capacity`: batches that wait at most, for each shard; the oldest is dropped then."""
        self._incoming = _Mailbox(capacity)
        self._invalid = 0
        self._unreadable = 0
        self._senders = [_Sender(address, capacity) for address in addresses]
        self._router = Threads(self._incoming.close)
        self._router.start(self._route, "priorities")

    def update(self, shard: ndarray, key: ndarray, priority: Any) -> None:
        """Hands over new priorities, all [B]; never waits, not for `priority` to be computed either.

        Args:
            shard: index of the shard that owns each item.
            key: of the items in their shards.
            priority: numpy or jax array, of which this process's rows are taken where it spans several processes; must
                not be changed or donated afterwards.
        """
        self._incoming.put((shard, key, priority), len(key))

    @property
    def counts(self) -> PriorityCounts:
        """What became of the priorities so far."""
        return PriorityCounts(
            sent=sum(sender.sent for sender in self._senders),
            dropped=self._incoming.dropped + self._unreadable + sum(sender.dropped for sender in self._senders),
            invalid=self._invalid,
        )

    def close(self, timeout: float) -> None:
        """Sends what is there within `timeout` seconds; counts the rest as dropped."""
        deadline = time.monotonic() + timeout
        self._router.end(timeout)
        for sender in self._senders:
            sender.box.close()
        for sender in self._senders:
            sender.finish(max(0.0, deadline - time.monotonic()))

    def _route(self) -> None:
        while (batch := self._incoming.get(timeout_s=1.0)) is not None:
            for sender in self._senders:
                sender.watch()
            if batch is NOTHING:
                continue
            try:
                shard, key, priority = batch
                self._split(shard, key, own_rows(priority))
            except Exception:  # e.g. an array that was donated: the next batch may be sound
                self._unreadable += len(batch[1])
                logging.exception("a batch of %d priorities couldn't be read and is dropped", len(batch[1]))

    def _split(self, shard: ndarray, key: ndarray, priority: ndarray) -> None:
        valid = np.isfinite(priority) & (priority >= 0)
        if not valid.all():
            # One of these in a table would end its worker: every insert and sample would hang (REVERB 0.11.0).
            bad = np.flatnonzero(~valid)
            self._invalid += len(bad)
            shown = ", ".join(f"{key[i]}: {priority[i]}" for i in bad[:SHOWN])
            logging.error(
                "%d of %d priorities are not finite and >= 0, and are not sent: key %s%s. The agent's update() made "
                "them; has the loss diverged?", len(bad), len(priority), shown, " ..." if len(bad) > SHOWN else "",
            )  # fmt: skip
        for index, sender in enumerate(self._senders):
            mine = np.flatnonzero(valid & (shard == index))
            if len(mine):
                sender.box.put(dict(zip(key[mine].tolist(), priority[mine].tolist(), strict=True)), len(mine))


class _Mailbox:
    """Bounded; the oldest goes when it is full. Counts the priorities that went with it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: collections.deque[tuple[Any, int]] = collections.deque()
        self._condition = threading.Condition()
        self._closed = False
        self.dropped = 0

    def put(self, item: Any, size: int) -> None:
        """Adds `size` priorities."""
        with self._condition:
            if self._closed:
                self.dropped += size
                return
            if len(self._items) == self._capacity:
                self.dropped += self._items.popleft()[1]
            self._items.append((item, size))
            self._condition.notify()

    def get(self, timeout_s: float | None = None) -> Any | None:
        """The oldest; None when closed and empty, NOTHING when none came in time."""
        with self._condition:
            self._condition.wait_for(lambda: self._items or self._closed, timeout_s)
            if self._items:
                return self._items.popleft()[0]
            return None if self._closed else NOTHING

    def close(self) -> None:
        """Nothing goes in any more."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def clear(self) -> None:
        """Drops all."""
        with self._condition:
            self.dropped += sum(size for _, size in self._items)
            self._items.clear()


class _Sender:
    """Sends to one shard. A call to a shard that is gone blocks until it is back: only this thread."""

    def __init__(self, address: str, capacity: int) -> None:
        self.box = _Mailbox(capacity)
        self.sent = 0
        self._refused = 0
        self._sending = 0  # priorities in the present call
        self._abandoned = 0
        self._address = address
        self._patience = Patience(f"priorities to {address}")
        self._thread = Threads(self.box.close)
        self._thread.start(self._run, f"priorities to {address}")

    @property
    def dropped(self) -> int:
        """Priorities that were not sent."""
        return self.box.dropped + self._refused + self._abandoned

    def watch(self) -> None:
        """Speaks for the thread while it is blocked in a call."""
        if self._sending:
            self._patience.waiting("the shard doesn't answer")
        else:
            self._patience.over()

    def finish(self, timeout_s: float) -> None:
        """Waits for the closed mailbox to be sent; counts as dropped what is not."""
        if not self._thread.end(timeout_s):
            self.box.clear()
            self._abandoned = self._sending
            logging.warning("priorities to %s: left behind, the shard doesn't answer", self._address)

    def _run(self) -> None:
        client = reverb.Client(self._address)
        while (updates := self.box.get()) is not None:
            self._sending = len(updates)
            try:
                client.mutate_priorities(TRAJECTORIES, updates=updates)
                self.sent += len(updates)
            except Exception as error:
                self._refused += len(updates)
                logging.warning("%d priorities were refused by %s: %s", len(updates), self._address, error)
                time.sleep(RETRY_S)
            finally:
                self._sending = 0
