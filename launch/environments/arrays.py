"""Arrays between a library's spaces and ours: names of nested observations, dtypes, actions within their bounds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from replay.spec import ArraySpec, ContinuousAction, DiscreteAction, ObservationSpec
from replay.steps import Array, Tree

_NARROWER = {"float64": "float32", "int64": "int32", "uint64": "uint32"}  # JAX has the wide ones switched off


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by name: nested mappings as "outer/inner", a bare leaf as ""."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat.update(flatten(value, f"{prefix}/{name}" if prefix else str(name)))
    return flat


def leaf(tree: Any, name: str) -> Any:
    """The leaf that flatten() gives this name. A library's own names may hold a "/" too, as dm_control's do."""
    if not name:
        return tree
    if name in tree:
        return tree[name]
    outer, _, inner = name.partition("/")
    return leaf(tree[outer], inner)


def observation_spec(flat: dict[str, ArraySpec]) -> ObservationSpec:
    """The spec of flat observations: a bare array's, or a dict."""
    return flat[""] if list(flat) == [""] else flat


def array_spec(shape: tuple[int, ...], dtype: Any, low: Any, high: Any, what: str) -> ArraySpec:
    """An array's spec with the dtype it is given to agents in, and the widest of its bounds.

    Raises:
        ValueError: the dtype isn't a number's.
    """
    dtype = np.dtype(dtype)
    if dtype.kind not in "fiub":
        raise ValueError(
            f"{what} has dtype {dtype}: only numbers can be shown to an agent. Leave it out or encode it, in a wrapper."
        )
    return ArraySpec(
        shape=tuple(shape),
        dtype=_NARROWER.get(dtype.name, dtype.name),
        minimum=float(np.min(low)) if np.size(low) else -np.inf,
        maximum=float(np.max(high)) if np.size(high) else np.inf,
    )


def stack_observations(observations: list[Any], spec: ObservationSpec) -> Tree:
    """Observations of B environments as new arrays [B, ...].

    Raises:
        ValueError: an observation's shape isn't the spec's.
    """
    if isinstance(spec, ArraySpec):
        return _stack(observations, spec, "The observation")
    return {
        name: _stack([leaf(observation, name) for observation in observations], array, f"Observation {name!r}")
        for name, array in spec.items()
    }


def _stack(arrays: list[Any], spec: ArraySpec, what: str) -> Array:
    for array in arrays:
        if np.shape(array) != spec.shape:
            raise ValueError(
                f"{what} has shape {np.shape(array)}, but the environment's spec says {spec.shape}. Correct one of "
                "them in the environment that environment.name names."
            )
    return np.stack(arrays, dtype=spec.dtype, casting="unsafe")


class DiscreteConverter:
    """Actions [B] 0..count-1 as a library takes them."""

    def __init__(self, count: int, *, start: int = 0, dtype: Any = np.int32) -> None:
        self.spec = DiscreteAction(count=int(count))
        self._dtype = np.dtype(dtype)
        self._start = self._dtype.type(start)

    def __call__(self, action: Array) -> Array:
        """The library's actions [B]."""
        action = np.asarray(action).astype(self._dtype, copy=False)
        return action + self._start if self._start else action


class ContinuousConverter:
    """Actions [B, A] float32, clipped and shaped as a library takes them."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, low: Any, high: Any) -> None:
        self._shape, self._dtype = tuple(shape), np.dtype(dtype)
        self._low = np.array(np.broadcast_to(low, shape), self._dtype).ravel()
        self._high = np.array(np.broadcast_to(high, shape), self._dtype).ravel()
        self.spec = ContinuousAction(
            size=len(self._low), minimum=tuple(self._low.tolist()), maximum=tuple(self._high.tolist())
        )

    def __call__(self, action: Array) -> Array:
        """The library's actions [B, *shape]."""
        action = np.asarray(action).astype(self._dtype, copy=False)
        # Cast first: float32 may round a bound outwards. np.clip costs three times as much on small arrays.
        action = np.minimum(np.maximum(action, self._low), self._high)
        return action.reshape(len(action), *self._shape)


ActionConverter = DiscreteConverter | ContinuousConverter
