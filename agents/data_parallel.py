"""Computation that stays with its part of the batch, on a learner of several devices.

An update is written as if there were one device; XLA splits it by the batch axis and puts in what has to cross. Most of
it splits well. What doesn't (a loop whose weights gather a gradient in each round, a cast of bytes) is wrapped by
each_share(), which runs it on each device's part alone, so that only gradients cross, once.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, PartitionSpec

AXIS = "data"  # of the mesh; batches are split over it
_MESH: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)

Function = Callable[..., Any]


@contextlib.contextmanager
def split_over(mesh: Mesh) -> Iterator[None]:
    """What is traced in here has its batches split over the mesh's axis "data"."""
    token = _MESH.set(mesh if mesh.size > 1 else None)
    try:
        yield
    finally:
        _MESH.reset(token)


def each_share(function: Function, batch_axes: tuple[int | None, ...], results: tuple[int | None, ...]) -> Function:
    """The function, run by each device on its part of the batch; itself where there is one device.

    Args:
        function: of pytrees; must treat the sequences of a batch independently of each other.
        batch_axes: of each argument, the axis of its leaves that is the batch, None where all devices have the same
            (weights). Their gradient is summed over the devices once, after the function's own backward pass.
        results: the batch's axis in each result, None where all devices come to the same.
    """
    mesh = _MESH.get()
    if mesh is None:
        return function
    arguments, given = (tuple(map(_spec, axes)) for axes in (batch_axes, results))
    # With check_rep a gradient would be summed where it arises, in every round of a loop; without, in the end.
    split: Function = shard_map(function, mesh, arguments, given, check_rep=False)
    return split


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)
