"""How rows are laid out in a replay item, and read back.

A writer appends *units*. In the segment layout a unit holds `period` new rows of one environment and the `overlap` rows
after them; an item is the last `units` of them. Where that would store too much twice (short periods), a unit is a row.

All small fields of a row are packed into one uint8 column, for Reverb keeps 1.1 kB of its own for each column of a
unit. A stacked observation is a column of single frames; a unit of the segment layout begins with the older frames of
its first row's stack. A recurrent state is a column too, of which an item holds the one of its first row.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replay.device_unpack import unpack_on_device
from replay.fields import Field, extras_fields, observation_fields, pack_dtype, state_fields
from replay.frames import rebuild_stacks
from replay.spec import ArraySpec, EnvironmentSpec, ReplaySpec
from replay.steps import Steps, Tree

ROWS = "rows"
STATE = "state"
FRAMES = "frames"  # the column of a stacked leaf: "frames", or "frames/KEY" of a dict observation
CONTEXT_FIRST = "context_first"  # `first` of the rows before a sequence, in the row layout
CHUNK_LIMIT = 2**31 - 2**20  # bytes; Reverb aborts the process at a chunk of 2 GiB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The columns of an item. Made by make_layout()."""

    spec: ReplaySpec
    environment: EnvironmentSpec
    fields: tuple[Field, ...]  # packed in the rows column, in this order
    frames: tuple[Field, ...]  # stacked leaves; depth is shape[0]
    state: tuple[Field, ...]
    state_tree: Any  # jax treedef of the state
    new_rows: int  # rows that a unit adds
    overlap: int  # rows of the next unit that a unit also holds
    units: int  # in an item
    stride: int  # units between the starts of two items
    context: int  # units of an item before its first row: the row layout's older frames

    @property
    def segmented(self) -> bool:
        """Whether a unit is a segment of several rows."""
        return self.overlap > 0

    @property
    def unit_rows(self) -> int:
        """Rows of a unit."""
        return self.new_rows + self.overlap

    @functools.cached_property
    def row_dtype(self) -> np.dtype[Any]:
        """A packed row."""
        return pack_dtype(self.fields)

    @functools.cached_property
    def state_dtype(self) -> np.dtype[Any]:
        """A packed recurrent state."""
        return pack_dtype(self.state)

    def frames_in_unit(self, leaf: Field) -> int:
        """Frames of a stacked leaf in a unit: a segment carries those before its first row."""
        return self.unit_rows + (leaf.shape[0] - 1 if self.segmented else 0)

    @functools.cached_property
    def unit_signature(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of what one append holds, by column."""
        columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        columns[ROWS] = ((self.unit_rows, self.row_dtype.itemsize), np.dtype(np.uint8))
        for leaf in self.frames:
            columns[leaf.name] = ((self.frames_in_unit(leaf), *leaf.shape[1:]), leaf.dtype)
        if self.state:
            columns[STATE] = ((self.state_dtype.itemsize,), np.dtype(np.uint8))
        return columns

    @property
    def signature(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of an item, by column."""
        return {
            name: ((1 if name == STATE else self.units, *shape), dtype)
            for name, (shape, dtype) in self.unit_signature.items()
        }

    @property
    def unit_nbytes(self) -> int:
        """Bytes of a unit before compression, without the state."""
        return sum(_nbytes(column) for name, column in self.unit_signature.items() if name != STATE)

    @property
    def item_nbytes(self) -> int:
        """Bytes of an item before compression, as a sample ships it."""
        return sum(_nbytes(column) for column in self.signature.values())

    @property
    def step_nbytes(self) -> float:
        """Bytes that replay keeps for each environment step before compression."""
        return (self.unit_nbytes + self.state_dtype.itemsize / self.stride) / self.new_rows

    def unpack(self, columns: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """An item batch's raw columns as plain arrays, on the host.

        Args:
            columns: as sampled, [N, *signature shape].

        Returns:
            Contiguous, batch-major, by name: "action", "observation" or "observation/KEY", "extras/NAME", ...
            [N, L, ...]; "frames..." [N, depth - 1 + L, *frame]; "state..." [N, ...].
        """
        rows = np.ascontiguousarray(columns[ROWS]).view(self.row_dtype)[..., 0]  # [N, units, unit_rows]
        arrays = {}
        for field in self.fields:
            joined = self._join(rows[field.name])
            if field.name == "first" and self.context:
                arrays[CONTEXT_FIRST] = np.ascontiguousarray(joined[:, : self.context])
            arrays[field.name] = np.ascontiguousarray(joined[:, self.context :])
        for leaf in self.frames:
            lead = leaf.shape[0] - 1
            joined = self._join(columns[leaf.name], lead if self.segmented else 0)
            arrays[leaf.name] = np.ascontiguousarray(joined[:, -(lead + self.spec.sequence_length) :])
        if self.state:
            packed = np.ascontiguousarray(columns[STATE]).view(self.state_dtype)[:, 0, 0]
            arrays.update({field.name: np.ascontiguousarray(packed[field.name]) for field in self.state})
        return arrays

    def assemble(self, arrays: Mapping[str, Any]) -> tuple[Steps, Tree]:
        """The steps and states of a batch, from unpack()'s arrays or raw columns. Made to be traced by jax.jit.

        Returns:
            Steps [L, N, ...], time-major, stacks rebuilt; and the states [N, ...], () if none are stored.
        """
        if ROWS in arrays:
            frames = {leaf.name: arrays[leaf.name] for leaf in self.frames}
            arrays = unpack_on_device(self, arrays[ROWS], frames, arrays.get(STATE))
        values = {field.name: jnp.swapaxes(jnp.asarray(arrays[field.name]), 0, 1) for field in self.fields}
        for leaf in self.frames:
            values["observation" + leaf.name.removeprefix(FRAMES)] = self._stacks(arrays, leaf)
        state = jax.tree_util.tree_unflatten(self.state_tree, [jnp.asarray(arrays[f.name]) for f in self.state])
        return self.as_steps(values), state

    def as_steps(self, values: Mapping[str, Any]) -> Steps:
        """Arrays by name as Steps; leaves of the observation that are missing are left out."""
        observation: Any
        if isinstance(self.environment.observation, ArraySpec):
            observation = values.get("observation")
        else:
            names = {key: f"observation/{key}" for key in self.environment.observation}
            observation = {key: values[name] for key, name in names.items() if name in values}
        extras = {name.removeprefix("extras/"): value for name, value in values.items() if name.startswith("extras/")}
        plain = {name: values[name] for name in Steps._fields if name not in ("observation", "extras")}
        return Steps(observation=observation, extras=extras, **plain)

    def _join(self, column: np.ndarray[Any, Any], lead: int = 0) -> np.ndarray[Any, Any]:
        """[N, units, lead + unit_rows, ...] as [N, lead + rows, ...]: what units share is taken once."""
        if self.units == 1:
            return column[:, 0]
        batch, units = column.shape[:2]
        new = units * self.new_rows
        joined = np.empty((batch, lead + new + self.overlap, *column.shape[3:]), column.dtype)
        joined[:, :lead] = column[:, 0, :lead]
        middle = joined[:, lead : lead + new].reshape(batch, units, self.new_rows, *column.shape[3:])
        assert np.shares_memory(middle, joined), "a copy would leave the joined array unfilled"
        middle[...] = column[:, :, lead : lead + self.new_rows]
        joined[:, lead + new :] = column[:, -1, lead + self.new_rows :]
        return joined

    def _stacks(self, arrays: Mapping[str, Any], leaf: Field) -> jax.Array:
        depth = leaf.shape[0]
        first = jnp.asarray(arrays["first"])
        if self.context:
            first = jnp.concatenate([jnp.asarray(arrays[CONTEXT_FIRST]), first], axis=1)
            first = first[:, -(depth - 1 + self.spec.sequence_length) :]
        else:
            first = jnp.pad(first, ((0, 0), (depth - 1, 0)))
        return rebuild_stacks(jnp.asarray(arrays[leaf.name]), first, depth)


def make_layout(
    spec: ReplaySpec, environment: EnvironmentSpec, extras: Mapping[str, ArraySpec], state: Tree = ()
) -> Layout:
    """The layout of a replay's items.

    Args:
        spec: how sequences are cut.
        environment: what the rows hold.
        extras: what the agent stores beside each step, by name, without batch axes.
        state: tree of ArraySpec, the recurrent state kept at the first row of each sequence; () for none.

    Raises:
        ValueError: for a name or dtype that can't be stored, or a unit that Reverb can't take; names the field.
    """
    plain, frames = observation_fields(environment.observation)
    action = environment.action_array
    fields = (
        *plain,
        Field("action", action.shape, np.dtype(action.dtype)),
        Field("reward", (), np.dtype(np.float32)),
        *(Field(name, (), np.dtype(bool)) for name in ("first", "terminated", "truncated", "valid")),
        Field("version", (), np.dtype(np.int32)),
        *extras_fields(extras),
    )
    stored, tree = state_fields(state)
    context = max((leaf.shape[0] - 1 for leaf in frames), default=0)
    layout = Layout(
        spec=spec, environment=environment, fields=fields, frames=frames, state=stored, state_tree=tree,
        **_cut(spec, context),
    )  # fmt: skip
    _check_chunks(layout)
    return layout


def _cut(spec: ReplaySpec, context: int) -> dict[str, int]:
    """Segments where at least half of a unit's rows and frames are new, else single rows."""
    units = (spec.sequence_length - 1) // spec.period
    overlap = spec.sequence_length - units * spec.period  # 1 where the periods divide the sequence
    if spec.period > 1 and (not context or context + overlap <= spec.period):
        return {"new_rows": spec.period, "overlap": overlap, "units": units, "stride": 1, "context": 0}
    units = spec.sequence_length + context
    return {"new_rows": 1, "overlap": 0, "units": units, "stride": spec.period, "context": context}


def _check_chunks(layout: Layout) -> None:
    sizes = {leaf.name: layout.frames_in_unit(leaf) * leaf.nbytes // leaf.shape[0] for leaf in layout.frames}
    sizes[ROWS] = layout.unit_rows * sum(field.nbytes for field in layout.fields)
    sizes[STATE] = sum(field.nbytes for field in layout.state)
    for name, size in sizes.items():
        if size > CHUNK_LIMIT:
            raise ValueError(
                f"The replay column {name!r} would hold {size / 2**30:.2f} GiB in one piece ({layout.unit_rows} rows): "
                f"Reverb aborts the process at 2 GiB. Set a shorter replay.period (now {layout.spec.period}), or store "
                f"smaller observations, extras or states."
            )


def _nbytes(column: tuple[tuple[int, ...], np.dtype[Any]]) -> int:
    return math.prod(column[0]) * column[1].itemsize
