"""Host arrays onto devices, again and again with the same shapes."""

from typing import Any

import jax
import numpy as np
from jax._src.interpreters.pxla import batched_device_put

ndarray = np.ndarray[Any, Any]


class Placer:
    """Puts arrays of at most 32-bit dtypes on devices, batch on axis 0.

    jax.device_put works out avals, devices and slices anew for every array of every batch, which took a reader's
    thread a third of its time; here that is done once for each shape. What jax.device_put calls in the end is called
    the same way, but it is no public function, so it stays in this module (JAX is pinned).
    """

    def __init__(self, sharding: jax.sharding.Sharding | None) -> None:
        """`sharding` None: the default device. One that spans other processes' devices: arrays are their local part."""
        self._sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        self._known: dict[tuple[tuple[int, ...], np.dtype[Any]], tuple[Any, list[Any], list[Any]]] = {}

    def place(self, array: ndarray) -> jax.Array:
        """One array; it must not be written to afterwards, for a CPU device may use it as it is."""
        key = (array.shape, array.dtype)
        if key not in self._known:
            self._known[key] = self._plan(*key)
        aval, slices, devices = self._known[key]
        result: jax.Array = batched_device_put(aval, self._sharding, [array[part] for part in slices], devices)
        return result

    def _plan(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, list[Any], list[Any]]:
        """The global array, the slices of this process's part of it, and the devices that they go to."""
        whole = shape
        if not self._sharding.is_fully_addressable:  # every process has as many rows as this one
            share = len(self._sharding.device_set) // len(self._sharding.addressable_devices)
            whole = (shape[0] * share, *shape[1:])
        parts = self._sharding.addressable_devices_indices_map(whole)
        before = min(part[0].start or 0 for part in parts.values() if part) if whole != shape else 0
        slices = [_shift(part, -before) if before else part for part in parts.values()]
        return jax.core.ShapedArray(whole, dtype), slices, list(parts)


def _shift(part: Any, rows: int) -> Any:
    return (slice(part[0].start + rows, part[0].stop + rows), *part[1:])


def own_rows(array: Any) -> ndarray:
    """The rows of an array split by axis 0 that this process has placed, in its order; of a host array all."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        return np.asarray(array)
    parts = sorted(array.addressable_shards, key=lambda part: part.index[0].start or 0)
    return np.concatenate([np.asarray(part.data) for part in parts])
