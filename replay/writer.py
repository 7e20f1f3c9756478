"""An actor's experience into all replay shards, in turn."""

import abc
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
from absl import logging

from replay.fields import check_rows, make_reader
from replay.layout import Layout
from replay.shard_writer import ShardWriter, checked_priorities, describe, in_flight_bound
from replay.spec import ReplaySpec
from replay.steps import Steps, Tree
from replay.units import UnitBuffer, ndarray

PATIENCE = 0.2  # seconds the shard in use may take no item before the others are tried
SLICE = 0.05  # seconds of one wait, so that a wait for all shards sees each of them and `stop`
SAY_EVERY = 10.0  # seconds between two messages of what is waited for


Shard = TypeVar("Shard", bound=ShardWriter)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WriterCounts:
    """What became of an actor's rows."""

    rows: int  # appended, all environments together
    rows_padded: int  # added by close() to fill the last sequences
    items_created: int  # given to Reverb: confirmed + unconfirmed + those lost with a stream
    items_confirmed: int  # at least so many are in a table
    items_unconfirmed: int  # at most so many are on their way
    items_skipped: int  # not made, as no row of them would be trained on
    items_lost: int  # not made as no shard took them in time or their priority was bad, or lost with a stream
    seconds_waited: float  # for room in any shard
    shards_stalled: int  # that took no item when last asked


class RoundRobinWriter(abc.ABC, Generic[Shard]):
    """Items to the shards, some to each in turn; what they are cut from is the subclasses' part.

    A shard that is gone or full is passed over as long as another takes items, and tried again when its turn comes.
    What it had been given before stays queued, and arrives when it is back. Only one thread may use a writer.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        layout: Layout,
        spec: ReplaySpec,
        environments: int,
        *,
        initial_priorities: Callable[[Steps], Any] | None = None,
        start: int = 0,
        items_in_flight: int = 64,
        items_per_shard: int = 256,
        balanced: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Nothing is connected before the first item.

        Args:
            addresses: "host:port" of every shard.
            layout: what the shards' tables were made for.
            spec: the same as the layout's.
            environments: B.
            initial_priorities: numpy Steps [L, B] (without stacked observations) -> [B]; called once for all
                environments' new items, if the spec is prioritized. Without it a priority is 1.
            start: the shard to begin with, modulo their number: actors should begin at different ones.
            items_in_flight: items that one shard may have unconfirmed (and 64 MiB of new data at most).
            items_per_shard: items written to a shard before the next one's turn. With the turn the rows that later
                sequences overlap with are sent once more.
            balanced: the addresses are a load balancer's, which has shards behind it: two streams take turns, and each
                turn begins with a new stream, which the balancer gives to the shard that has the fewest.
            stop: a wait for room ends when it is set; the items that waited are lost, and counted, as are all later
                ones that would have to wait.
        """
        numbers = {
            "addresses": len(addresses),
            "environments": environments,
            "actor.items_in_flight": items_in_flight,
            "actor.items_per_shard": items_per_shard,
        }
        for name, value in numbers.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if spec != layout.spec:
            raise ValueError(f"The writer's spec is not the one its layout was made for: {spec}, {layout.spec}.")
        self._layout, self._spec, self._environments = layout, spec, environments
        self._priorities = initial_priorities if spec.prioritized else None
        self._per_shard, self._stop = items_per_shard, stop or threading.Event()
        self._read = make_reader(layout)
        bound = in_flight_bound(layout, items_in_flight)
        self._renews = balanced
        addresses = [*addresses, *addresses] if balanced else addresses
        self._shards = [self._make_shard(address, bound) for address in addresses]
        self._current = start % len(addresses)
        self._turn = 0  # items the current shard got in its turn
        self._rows = self._padded = self._skipped = self._lost = 0
        self._waited = 0.0
        self._deadline = float("inf")  # of waits for room: close() sets one
        self._checked = self._closed = False
        self._given_up = False  # no shard had room after `stop` was set: until close() none is asked any more

    @property
    def counts(self) -> WriterCounts:
        """What became of the rows so far."""
        created, unconfirmed, lost = (
            sum(getattr(shard, name) for shard in self._shards) for name in ("created", "unconfirmed", "lost")
        )
        return WriterCounts(
            rows=self._rows,
            rows_padded=self._padded,
            items_created=created,
            items_confirmed=created - unconfirmed - lost,
            items_unconfirmed=unconfirmed,
            items_skipped=self._skipped,
            items_lost=self._lost + lost,
            seconds_waited=self._waited,
            shards_stalled=sum(shard.stalled for shard in self._shards),
        )

    def close(self, timeout_s: float) -> None:
        """Writes the last rows, padded with invalid ones, and waits until everything is confirmed, so long at most.

        The streams end with the last row as with a time limit: see UnitBuffer.cut(). What isn't confirmed in time is
        counted as unconfirmed (it may still have arrived), what no shard took is lost.
        """
        if self._closed:
            return
        self._closed = True
        self._deadline = time.monotonic() + timeout_s
        try:
            if self._rows:
                self._write_tail()
        finally:
            self._flush(timeout_s)

    def _flush(self, timeout_s: float) -> None:
        waiting = list(self._shards)
        while waiting and time.monotonic() < self._deadline:
            waiting = [shard for shard in waiting if not shard.flush(min(SLICE, timeout_s))]
        for shard in waiting:
            if shard.count_unconfirmed():
                logging.warning(
                    "Closing with %d items unconfirmed: %s %s", shard.unconfirmed, shard.address, shard.why()
                )
        for shard in self._shards:
            shard.close()

    def _check(self, row: Steps, state: Tree, count: int) -> None:
        """Refuses rows after close(), and looks at the first one."""
        if self._closed:
            raise ValueError("The replay writer is closed: it takes no more rows.")
        if not self._checked:
            check_rows(self._layout, row, state, count)
            self._checked = True

    def _leaves(self, state: Tree) -> Sequence[Any]:
        return jax.tree_util.tree_leaves(state) if self._layout.state else ()

    def _priorities_of(self, steps: Callable[[], Steps], wanted: ndarray, rows: int) -> list[float]:
        """Priorities [M] of new items, 1 where there is no function for them; `steps` are asked for only if needed.

        Raises:
            Exception: bad ones, or what the function raised; the items are counted as lost.
        """
        if self._priorities is None:
            return [1.0] * len(wanted)
        try:
            return checked_priorities(self._priorities(steps()), wanted, rows, self._spec.sequence_length)
        except Exception:
            self._lost += int(wanted.sum())
            raise

    def _begin_item(self) -> None:
        """Passes the turn on where the current shard had its share."""
        if self._turn >= self._per_shard:
            self._pass_on((self._current + 1) % len(self._shards))
            if self._renews:
                self._shards[self._current].renew()

    @abc.abstractmethod
    def _make_shard(self, address: str, bound: int) -> Shard:
        """A stream to a shard, that may have so many items unconfirmed."""

    @abc.abstractmethod
    def _write_tail(self) -> None:
        """Ends the streams as with a time limit, and writes what isn't in an item yet."""

    def _find_room(self) -> Shard | None:
        """The current shard if it has room, else the next that has; waits for one. None when stopped."""
        current = self._shards[self._current]
        if current.connected and not current.full:
            return current
        if self._given_up and not self._closed:
            return None
        began, said = time.monotonic(), 0.0
        seconds = 0.0 if current.stalled else PATIENCE
        while True:
            for ahead in range(len(self._shards)):
                index = (self._current + ahead) % len(self._shards)
                shard = self._shards[index]
                if shard.connect() and shard.has_room(seconds if ahead == 0 else 0.0):
                    self._waited += time.monotonic() - began
                    self._pass_on(index)
                    return shard
            now = time.monotonic()
            if self._stop_waiting(now):
                self._waited += now - began
                self._given_up = True
                return None
            if now - began > said + SAY_EVERY:
                said = now - began
                logging.warning("Waiting for room in replay for %.0f s: %s", said, describe(self._shards))
            seconds = SLICE
            if not self._shards[self._current].connected:
                self._stop.wait(SLICE)

    def _stop_waiting(self, now: float) -> bool:
        return now >= self._deadline or (self._stop.is_set() and not self._closed)

    def _pass_on(self, index: int) -> None:
        """Gives a shard its turn."""
        if index != self._current or self._turn >= self._per_shard:
            self._current, self._turn = index, 0


class ReplayWriter(RoundRobinWriter[ShardWriter]):
    """Cuts the rows of B environments in lockstep into items."""

    def __init__(self, addresses: Sequence[str], layout: Layout, spec: ReplaySpec, environments: int, **settings: Any):
        """As RoundRobinWriter's."""
        super().__init__(addresses, layout, spec, environments, **settings)
        self._buffer = UnitBuffer(layout, environments)
        self._trained = 0  # rows from here on are in no item's trained part yet

    def append(self, row: Steps, state: Tree = ()) -> None:
        """Takes one row of every environment, and writes the items that end with it.

        Waits only while every shard has as much unconfirmed as it may: see `stop`. The arrays are copied, they may be
        reused afterwards.

        Args:
            row: numpy arrays [B, ...].
            state: numpy arrays [B, ...], the agent's state before it acted; () if none is stored.

        Raises:
            ValueError: if the first row differs from the layout, or for a priority that Reverb can't take: then these
                items are counted as lost, and the next rows can be appended all the same.
        """
        self._check(row, state, self._environments)
        self._append(self._read(row), self._leaves(state))
        self._rows += self._environments

    def _make_shard(self, address: str, bound: int) -> ShardWriter:
        return ShardWriter(address, self._layout, self._environments, bound)

    def _append(self, row: Sequence[Any], states: Sequence[Any]) -> None:
        first = self._buffer.units
        for unit in range(first, first + self._buffer.append(row, states)):
            if self._buffer.item_ends(unit):
                self._trained = self._buffer.rows - self._spec.n_step
                self._write_items(unit)

    def _write_tail(self) -> None:
        self._buffer.cut()
        for shard in self._shards:
            shard.position = 0  # what the cut changed is sent again
        row, states = self._buffer.padding()
        while self._buffer.any_valid(self._trained):
            self._append(row, states)
            self._padded += self._environments

    def _write_items(self, unit: int) -> None:
        wanted = self._buffer.trainable()
        count = int(wanted.sum())
        self._skipped += len(wanted) - count
        if not count:
            return
        priorities = self._priorities_of(self._buffer.steps, wanted, self._buffer.rows)
        items = [priority if want else None for priority, want in zip(priorities, wanted.tolist(), strict=True)]
        self._begin_item()
        self._place(unit, items)

    def _place(self, unit: int, items: list[float | None]) -> None:
        """Makes the items that end with a unit, at the first shards that have room."""
        placed = 0
        while placed < len(items):
            shard = self._find_room()
            if shard is None:
                self._lost += sum(item is not None for item in items[placed:])
                return
            try:
                placed = self._write(shard, unit, items, placed)
            except RuntimeError as error:
                shard.fail(error)
            except ValueError:
                self._lost += sum(item is not None for item in items[placed:])
                raise

    def _write(self, shard: ShardWriter, unit: int, items: list[float | None], placed: int) -> int:
        """Sends a shard the units it lacks, and makes items as long as it has room; how many are placed then."""
        environments = self._environments
        shard.position = max(shard.position, (unit + 1 - self._layout.units) * environments)
        for lacking in range(shard.position // environments, unit + 1):
            columns = self._buffer.unit(lacking)
            for index in range(shard.position % environments, environments):
                item = items[index] if lacking == unit and index >= placed else None
                if item is not None and shard.full:
                    return index
                shard.append({name: None if column is None else column[index] for name, column in columns.items()})
                if item is not None:
                    shard.create_item(item)
                    self._turn += 1
        return environments
