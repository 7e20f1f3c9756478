"""The rows of an actor's environments, gathered into the units that are appended to replay."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replay.layout import ROWS, STATE, Layout
from replay.steps import Steps

ndarray = np.ndarray[Any, Any]


class UnitArrays:
    """Preallocated arrays for the newest units of B environments, in a ring."""

    def __init__(self, layout: Layout, environments: int) -> None:
        self._layout = layout
        self._ring = layout.units + 1  # an item's units, and the one that is filling
        shape = (self._ring, environments)
        self._rows = np.zeros((*shape, layout.unit_rows), layout.row_dtype)
        self._states = np.zeros(shape, layout.state_dtype)
        self._columns = {ROWS: self._rows.view(np.uint8).reshape(*self._rows.shape, layout.row_dtype.itemsize)}
        for leaf in layout.frames:
            frames = (layout.frames_in_unit(leaf), *leaf.shape[1:])
            self._columns[leaf.name] = np.zeros((*shape, *frames), leaf.dtype)
        if layout.state:
            self._columns[STATE] = self._states.view(np.uint8).reshape(*shape, layout.state_dtype.itemsize)
        self._fields = [self._rows[field.name] for field in layout.fields]
        self._is_valid = [field.name for field in layout.fields].index("valid")
        self._leaves = [(self._columns[leaf.name], leaf.shape[0]) for leaf in layout.frames]
        self._valid = np.zeros((layout.spec.sequence_length, environments), bool)

    def _begins(self, unit: int) -> bool:
        """Whether a sequence begins with this unit."""
        index = unit - self._layout.context
        return index >= 0 and index % self._layout.stride == 0


class UnitBuffer(UnitArrays):
    """The newest units of B environments in lockstep.

    Units are counted from 0; unit u of all environments is complete at once.
    """

    def __init__(self, layout: Layout, environments: int) -> None:
        super().__init__(layout, environments)
        self._sequence = np.zeros((layout.spec.sequence_length, environments), layout.row_dtype)
        self.rows = 0  # appended to each environment
        self.units = 0  # complete ones
        self._filled = 0  # rows in the unit that is filling

    def append(self, row: Sequence[ndarray], states: Sequence[ndarray]) -> int:
        """Takes one row [B, ...] of every environment, in the order of make_reader().

        Returns:
            How many units are complete now that weren't before.
        """
        layout, before, position = self._layout, self.units, self._filled
        stacks = row[len(self._fields) :]
        if layout.context and not self.rows:
            self._begin(stacks)
        slot = self.units % self._ring
        for target, value in zip(self._fields, row):  # noqa: B905 - the stacks follow
            target[slot, :, position] = value
        self._valid[self.rows % len(self._valid)] = row[self._is_valid]
        for (frames, depth), stack in zip(self._leaves, stacks, strict=True):
            frames[slot, :, depth - 1 + position if layout.segmented else 0] = stack[:, -1]
        if not layout.segmented:
            self._keep_state(slot, states)
        elif position == 0:
            self._open_unit(slot, stacks, states)
        elif position == layout.new_rows:
            self._open_unit((slot + 1) % self._ring, stacks, states)
        self.rows += 1
        self._filled += 1
        if self._filled == layout.unit_rows:
            self._complete(slot)
        return self.units - before

    def item_ends(self, unit: int) -> bool:
        """Whether a sequence ends with this unit."""
        beyond = unit + 1 - self._layout.units
        return beyond >= 0 and beyond % self._layout.stride == 0

    def unit(self, unit: int) -> dict[str, ndarray | None]:
        """The columns of a unit, [B, ...]; views of the buffer. A row that begins no sequence has no state."""
        slot = unit % self._ring
        columns: dict[str, ndarray | None] = {name: column[slot] for name, column in self._columns.items()}
        if STATE in columns and not self._begins(unit):
            columns[STATE] = None
        return columns

    def trainable(self) -> ndarray:
        """[B] bool: whether the newest sequence has a valid row among those that are trained on."""
        spec = self._layout.spec
        start = self.rows + spec.burn_in  # modulo the length, the newest sequence begins at self.rows
        trained = self._valid[np.arange(start, start + spec.trace) % spec.sequence_length]
        return np.asarray(trained.any(axis=0))

    def steps(self) -> Steps:
        """The newest sequences, [L, B, ...], without stacked observations. Views, overwritten by the next call."""
        layout, new = self._layout, self._layout.new_rows
        start = self.units - layout.units + layout.context
        for index, unit in enumerate(range(start, self.units)):
            rows = self._rows[unit % self._ring]
            self._sequence[index * new : (index + 1) * new] = rows[:, :new].T
        if layout.overlap:
            self._sequence[-layout.overlap :] = rows[:, new:].T
        return layout.as_steps({field.name: self._sequence[field.name] for field in layout.fields})

    def any_valid(self, start: int) -> bool:
        """Whether any row from `start` on is valid; it must be among the newest sequence's."""
        return bool(self._valid[np.arange(start, self.rows) % len(self._valid)].any())

    def padding(self) -> tuple[list[ndarray], list[ndarray]]:
        """A row and states [B, ...] to fill sequences with: invalid, an episode of its own, zeros otherwise."""
        layout, environments = self._layout, self._rows.shape[1]
        fields = (*layout.fields, *layout.frames)
        row: dict[str, ndarray] = {field.name: np.zeros((environments, *field.shape), field.dtype) for field in fields}
        row["first"][:] = True
        row["version"][:] = self._rows["version"][next(self._copies(0))]
        return list(row.values()), [np.zeros((environments, *field.shape), field.dtype) for field in layout.state]

    def cut(self) -> None:
        """Ends the streams at the last row, as a time limit would.

        The last row's action has no following observation to bootstrap from. So its row becomes the episode's last
        observation (invalid, the row before truncated), unless the action terminated the episode: then it is whole.
        """
        last, before = list(self._copies(0)), list(self._copies(1))
        row = self._rows[last[0]]
        cut = row["valid"] & ~row["terminated"]
        truncate = cut & ~row["first"]
        for copy in last:
            self._rows["valid"][copy] &= ~cut
            self._rows["truncated"][copy] &= ~cut
        for copy in before:
            self._rows["truncated"][copy] |= truncate
        self._valid[(self.rows - 1) % len(self._valid)] &= ~cut

    def _copies(self, back: int) -> Iterator[tuple[int, slice, int]]:
        """Where the ring holds the row so many before the newest: neighbouring units share some."""
        if back >= self.rows:
            return
        index = self._filled - 1 - back
        if not self._layout.segmented:
            yield (self.units - 1 - back) % self._ring, slice(None), 0
            return
        if index >= 0:
            yield self.units % self._ring, slice(None), index
        index += self._layout.new_rows
        if self.units and 0 <= index < self._layout.unit_rows:
            yield (self.units - 1) % self._ring, slice(None), index

    def _begin(self, stacks: Sequence[ndarray]) -> None:
        """The row layout's units before the first row: the older frames of its stack."""
        for back in range(self._layout.context, 0, -1):
            for (frames, depth), stack in zip(self._leaves, stacks, strict=True):
                if back < depth:
                    frames[self.units % self._ring, :, 0] = stack[:, depth - 1 - back]
            self.units += 1

    def _open_unit(self, slot: int, stacks: Sequence[ndarray], states: Sequence[ndarray]) -> None:
        """What a segment keeps of its first row alone: the older frames of its stack, and the state."""
        for (frames, depth), stack in zip(self._leaves, stacks, strict=True):
            frames[slot, :, :depth] = stack
        self._keep_state(slot, states)

    def _keep_state(self, slot: int, states: Sequence[ndarray]) -> None:
        for field, state in zip(self._layout.state, states, strict=True):
            self._states[field.name][slot] = state

    def _complete(self, slot: int) -> None:
        layout = self._layout
        following = (slot + 1) % self._ring
        if layout.segmented:
            self._rows[following, :, : layout.overlap] = self._rows[slot, :, layout.new_rows :]
            for frames, depth in self._leaves:
                tail = frames[slot, :, depth + layout.new_rows :]  # after the row that opened the following unit
                frames[following, :, depth : depth + tail.shape[1]] = tail
        self.units += 1
        self._filled = layout.overlap
