"""An item batch's raw columns as the arrays of Layout.unpack(), but inside jit, on the devices.

Then a batch crosses to the device as it came out of replay: one array for each column instead of one for each field
(each costs the host some 50 us), and the host copies nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from replay.fields import Field

if TYPE_CHECKING:
    from replay.layout import Layout


def unpack_on_device(
    layout: "Layout", rows: jax.Array, frames: Mapping[str, jax.Array], state: jax.Array | None
) -> dict[str, jax.Array]:
    """Made to be traced.

    Args:
        layout: of the items.
        rows: the packed rows, uint8 [N, units, unit_rows, nbytes].
        frames: the stacked leaves by column, [N, units, frames, *frame].
        state: the packed recurrent states, uint8 [N, 1, nbytes]; None if none are stored.

    Returns:
        By name, as Layout.unpack().
    """
    fields = _split(rows, layout.fields, layout.row_dtype)
    arrays = {name: _join(layout, value)[:, layout.context :] for name, value in fields.items()}
    if layout.context:
        arrays["context_first"] = _join(layout, fields["first"])[:, : layout.context]
    for leaf in layout.frames:
        lead = leaf.shape[0] - 1
        joined = _join(layout, frames[leaf.name], lead if layout.segmented else 0)
        arrays[leaf.name] = joined[:, -(lead + layout.spec.sequence_length) :]
    if state is not None:
        arrays.update(_split(state[:, 0], layout.state, layout.state_dtype))
    return arrays


def _split(packed: jax.Array, fields: Sequence[Field], dtype: np.dtype[Any]) -> dict[str, jax.Array]:
    """[..., nbytes] uint8 as a field's [..., *shape] each."""
    values = {}
    for field in fields:
        assert dtype.fields is not None
        offset = dtype.fields[field.name][1]
        raw = packed[..., offset : offset + field.nbytes]
        values[field.name] = _cast(raw, field)
    return values


def _cast(raw: jax.Array, field: Field) -> jax.Array:
    lead, size = raw.shape[:-1], field.dtype.itemsize
    if field.dtype == np.bool_:
        return (raw != 0).reshape(*lead, *field.shape)
    if size > 1:
        raw = raw.reshape(*lead, math.prod(field.shape), size)
    return jax.lax.bitcast_convert_type(raw, field.dtype).reshape(*lead, *field.shape)


def _join(layout: "Layout", column: jax.Array, lead: int = 0) -> jax.Array:
    """[N, units, lead + unit_rows, ...] as [N, lead + rows, ...]: what units share is taken once."""
    if layout.units == 1:
        return column[:, 0]
    new = layout.new_rows
    middle = column[:, :, lead : lead + new]
    middle = middle.reshape(column.shape[0], -1, *column.shape[3:])
    return jnp.concatenate([column[:, 0, :lead], middle, column[:, -1, lead + new :]], axis=1)
