"""The experience of environments that each go at their own pace into all replay shards, in turn."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from replay.layout import STATE, Layout
from replay.scattered_units import ScatteredUnitBuffer
from replay.shard_writer import ShardWriter
from replay.spec import ReplaySpec
from replay.steps import Steps, Tree
from replay.units import ndarray
from replay.writer import RoundRobinWriter

LAG = 4  # how many times the appends of all environments' items a slow one may be behind before its units go again


class ScatteredShardWriter(ShardWriter):
    """A stream in which the environments' units follow each other in any order."""

    def __init__(self, address: str, layout: Layout, environments: int, bound: int) -> None:
        super().__init__(address, layout, environments, bound)
        self._keep_alive *= LAG
        self._next = np.zeros(environments, np.int64)  # units from here on this stream lacks
        self._at = np.zeros((environments, layout.units), np.int64)  # appends before each unit's own

    def connect(self) -> bool:
        """As ShardWriter's."""
        new = not self.connected
        if not super().connect():
            return False
        if new:
            self.forget()
        return True

    def forget(self) -> None:
        """Sends every unit again that an item needs."""
        self._next[:] = 0

    def write(
        self, environment: int, unit: int, columns: Callable[[int, int], Mapping[str, Any]], priority: float
    ) -> None:
        """Makes an item that ends with an environment's unit; sends the units of it that the stream lacks or that are
        too long ago. Never waits.
        """
        units = self._layout.units
        first = unit + 1 - units
        lacking = max(int(self._next[environment]), first)
        appends = self.position + unit + 1 - lacking  # when all are sent
        if lacking > first and appends - self._at[environment, first % units] > self._keep_alive:
            lacking = first
        for each in range(lacking, unit + 1):
            self._at[environment, each % units] = self.position
            self.append(columns(environment, each))
        self._next[environment] = unit + 1
        back = [int(self._at[environment, each % units]) - self.position for each in range(first, unit + 1)]
        begin = [back[self._layout.context]]
        self._create_item(priority, {name: begin if name == STATE else back for name in self._columns})


class AsynchronousWriter(RoundRobinWriter[ScatteredShardWriter]):
    """Cuts the rows of B environments into items, each environment's by itself, in whatever order they come."""

    def __init__(
        self, addresses: Sequence[str], layout: Layout, spec: ReplaySpec, environments: int, **settings: Any
    ) -> None:
        """As RoundRobinWriter's."""
        super().__init__(addresses, layout, spec, environments, **settings)
        self._buffer = ScatteredUnitBuffer(layout, environments)
        self._trained = np.zeros(environments, np.int64)  # rows from here on are in no item's trained part yet

    def append(self, row: Steps, state: Tree, ids: ndarray) -> None:
        """Takes one row of some environments, and writes the items that end with it, as ReplayWriter does.

        Args:
            row: numpy arrays [M, ...].
            state: numpy arrays [M, ...], the agent's state before it acted; () if none is stored.
            ids: [M], which environments; each once.
        """
        self._check(row, state, len(ids))
        self._append(self._read(row), self._leaves(state), ids)
        self._rows += len(ids)

    def _make_shard(self, address: str, bound: int) -> ScatteredShardWriter:
        return ScatteredShardWriter(address, self._layout, self._environments, bound)

    def _append(self, row: Sequence[Any], states: Sequence[Any], ids: ndarray) -> None:
        done = self._buffer.append(row, states, ids)
        ended = done[self._buffer.item_ends(done)]
        if not len(ended):
            return
        self._trained[ended] = self._buffer.rows[ended] - self._spec.n_step
        wanted = self._buffer.trainable(ended)
        self._skipped += len(ended) - int(wanted.sum())
        ended = ended[wanted]
        if len(ended):
            self._write_items(ended)

    def _write_items(self, ids: ndarray) -> None:
        rows = int(self._buffer.rows[ids[0]])
        priorities = self._priorities_of(lambda: self._buffer.steps(ids), np.ones(len(ids), bool), rows)
        self._begin_item()
        for place, environment in enumerate(ids.tolist()):
            unit = int(self._buffer.units[environment]) - 1
            if not self._write(environment, unit, priorities[place]):
                self._lost += len(ids) - place
                return

    def _write(self, environment: int, unit: int, priority: float) -> bool:
        """Makes an item at the first shard that has room; False when stopped."""
        while (shard := self._find_room()) is not None:
            try:
                shard.write(environment, unit, self._buffer.unit, priority)
            except RuntimeError as error:
                shard.fail(error)
                continue
            self._turn += 1
            return True
        return False

    def _write_tail(self) -> None:
        self._buffer.cut()
        for shard in self._shards:
            shard.forget()  # what the cut changed is sent again
        while len(ids := self._buffer.with_valid(self._trained)):
            self._append(*self._buffer.padding(ids), ids)
            self._padded += len(ids)
