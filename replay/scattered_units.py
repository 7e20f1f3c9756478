"""The rows of environments that each go at their own pace, gathered into the units that are appended to replay."""

from collections.abc import Iterator, Sequence

import numpy as np

from replay.layout import STATE, Layout
from replay.steps import Steps
from replay.units import UnitArrays, ndarray


class ScatteredUnitBuffer(UnitArrays):
    """The newest units of B environments, which are numbered for each environment by itself.

    `ids` are the numbers of some environments, [M], each at most once.
    """

    def __init__(self, layout: Layout, environments: int) -> None:
        super().__init__(layout, environments)
        self.rows = np.zeros(environments, np.int64)  # appended to each
        self.units = np.zeros(environments, np.int64)  # complete ones of each
        self._filled = np.zeros(environments, np.int64)  # rows in the unit that is filling

    def append(self, row: Sequence[ndarray], states: Sequence[ndarray], ids: ndarray) -> ndarray:
        """Takes one row [M, ...] of the environments `ids`, in the order of make_reader().

        Returns:
            Those whose unit is complete now, and wasn't before.
        """
        layout, count = self._layout, len(self._fields)
        stacks = row[count:]
        if layout.context and np.count_nonzero(new := self.rows[ids] == 0):
            self._begin([stack[new] for stack in stacks], ids[new])
        slot, position = self.units[ids] % self._ring, self._filled[ids]
        packed = np.empty(len(ids), layout.row_dtype)
        for field, value in zip(layout.fields, row):  # noqa: B905 - the stacks follow
            packed[field.name] = value
        self._rows[slot, ids, position] = packed
        self._valid[self.rows[ids] % len(self._valid), ids] = row[self._is_valid]
        for (frames, depth), stack in zip(self._leaves, stacks, strict=True):
            frames[slot, ids, depth - 1 + position if layout.segmented else 0] = stack[:, -1]
        if not layout.segmented:
            self._keep_state(slot, states, ids)
        else:
            for opens, at in ((position == 0, slot), (position == layout.new_rows, (slot + 1) % self._ring)):
                if np.count_nonzero(opens):
                    some = [stack[opens] for stack in stacks], [state[opens] for state in states]
                    self._open_units(at[opens], *some, ids[opens])
        self.rows[ids] += 1
        self._filled[ids] += 1
        done: ndarray = ids[self._filled[ids] == layout.unit_rows]
        if len(done):
            self._complete(done)
        return done

    def item_ends(self, ids: ndarray) -> ndarray:
        """[M] bool: whether a sequence ends with the newest complete unit."""
        beyond = self.units[ids] - self._layout.units
        return np.asarray((beyond >= 0) & (beyond % self._layout.stride == 0))

    def unit(self, environment: int, unit: int) -> dict[str, ndarray | None]:
        """The columns of one environment's unit; views. A row that begins no sequence has no state."""
        slot = unit % self._ring
        columns: dict[str, ndarray | None] = {name: column[slot, environment] for name, column in self._columns.items()}
        if STATE in columns and not self._begins(unit):
            columns[STATE] = None
        return columns

    def trainable(self, ids: ndarray) -> ndarray:
        """[M] bool: whether the newest sequence has a valid row among those that are trained on."""
        spec = self._layout.spec
        trained = self.rows[ids, None] + spec.burn_in + np.arange(spec.trace)  # modulo the length
        return np.asarray(self._valid[trained % spec.sequence_length, ids[:, None]].any(axis=1))

    def steps(self, ids: ndarray) -> Steps:
        """The newest sequences, [L, M, ...], without stacked observations."""
        layout, new = self._layout, self._layout.new_rows
        sequence = np.empty((layout.spec.sequence_length, len(ids)), layout.row_dtype)
        for index in range(layout.units - layout.context):
            unit = self.units[ids] - layout.units + layout.context + index
            rows = self._rows[unit % self._ring, ids]  # [M, unit_rows]
            sequence[index * new : (index + 1) * new] = rows[:, :new].T
        if layout.overlap:
            sequence[-layout.overlap :] = rows[:, new:].T
        return layout.as_steps({field.name: sequence[field.name] for field in layout.fields})

    def with_valid(self, start: ndarray) -> ndarray:
        """The environments that have a valid row from `start` [B] on, which must be among the newest sequence's."""
        length = len(self._valid)
        return np.flatnonzero(
            [self._valid[np.arange(start[each], self.rows[each]) % length, each].any() for each in range(len(start))]
        )

    def padding(self, ids: ndarray) -> tuple[list[ndarray], list[ndarray]]:
        """A row and states [M, ...] to fill sequences with: invalid, an episode of its own, zeros otherwise."""
        layout = self._layout
        fields = (*layout.fields, *layout.frames)
        row: dict[str, ndarray] = {field.name: np.zeros((len(ids), *field.shape), field.dtype) for field in fields}
        row["first"][:] = True
        row["version"][:] = [self._rows["version"][next(self._copies(each, 0))] for each in ids.tolist()]
        return list(row.values()), [np.zeros((len(ids), *field.shape), field.dtype) for field in layout.state]

    def cut(self) -> None:
        """Ends every stream at its last row, as UnitBuffer.cut() does."""
        for environment in np.flatnonzero(self.rows).tolist():
            last = list(self._copies(environment, 0))
            row = self._rows[last[0]]
            if not row["valid"] or row["terminated"]:
                continue
            for copy in last:
                self._rows["valid"][copy] = self._rows["truncated"][copy] = False
            if not row["first"]:
                for copy in self._copies(environment, 1):
                    self._rows["truncated"][copy] = True
            self._valid[(self.rows[environment] - 1) % len(self._valid), environment] = False

    def _copies(self, environment: int, back: int) -> Iterator[tuple[int, int, int]]:
        """Where the ring holds an environment's row so many before its newest: neighbouring units share some."""
        layout, units = self._layout, int(self.units[environment])
        if back >= self.rows[environment]:
            return
        index = int(self._filled[environment]) - 1 - back
        if not layout.segmented:
            yield (units - 1 - back) % self._ring, environment, 0
            return
        if index >= 0:
            yield units % self._ring, environment, index
        index += layout.new_rows
        if units and 0 <= index < layout.unit_rows:
            yield (units - 1) % self._ring, environment, index

    def _begin(self, stacks: Sequence[ndarray], ids: ndarray) -> None:
        """The row layout's units before the first row: the older frames of its stack."""
        for back in range(self._layout.context, 0, -1):
            for (frames, depth), stack in zip(self._leaves, stacks, strict=True):
                if back < depth:
                    frames[self.units[ids] % self._ring, ids, 0] = stack[:, depth - 1 - back]
            self.units[ids] += 1

    def _open_units(self, slot: ndarray, stacks: Sequence[ndarray], states: Sequence[ndarray], ids: ndarray) -> None:
        """What a segment keeps of its first row alone: the older frames of its stack, and the state."""
        for (frames, depth), stack in zip(self._leaves, stacks, strict=True):
            frames[slot, ids, :depth] = stack
        self._keep_state(slot, states, ids)

    def _keep_state(self, slot: ndarray, states: Sequence[ndarray], ids: ndarray) -> None:
        for field, state in zip(self._layout.state, states, strict=True):
            self._states[field.name][slot, ids] = state

    def _complete(self, ids: ndarray) -> None:
        layout = self._layout
        slot = self.units[ids] % self._ring
        following = (slot + 1) % self._ring
        if layout.segmented:
            self._rows[following, ids, : layout.overlap] = self._rows[slot, ids, layout.new_rows :]
            for frames, depth in self._leaves:
                tail = frames[slot, ids, depth + layout.new_rows :]  # after the row that opened the following unit
                frames[following, ids, depth : depth + tail.shape[1]] = tail
        self.units[ids] += 1
        self._filled[ids] = layout.overlap
