"""The fields of a row by name, checked when a layout is made and when rows are first appended."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from replay.spec import ArraySpec, ObservationSpec
from replay.steps import Steps, Tree

if TYPE_CHECKING:
    from replay.layout import Layout

RESERVED = frozenset(Steps._fields)


class Field(NamedTuple):
    """One array of a row or state, without batch and time axes."""

    name: str  # e.g. "action", "observation/pixels", "frames/pixels", "extras/logits", "state/0"
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of one such array."""
        return math.prod(self.shape) * self.dtype.itemsize


def make_field(name: str, spec: ArraySpec) -> Field:
    """The field of a spec.

    Raises:
        ValueError: for a dtype that a device wouldn't give back as it was.
    """
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError as error:
        raise ValueError(f"{name}: dtype {spec.dtype!r} is none of numpy's. Name one, e.g. 'float32'.") from error
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        raise ValueError(f"{name}: dtype {dtype} can't be stored. Use bool, an integer or a float of 32 bits or fewer.")
    if dtype.itemsize > 4:
        raise ValueError(
            f"{name}: dtype {dtype} would come back from a device as {dtype.kind}4: JAX runs with 32 bits. "
            f"Convert it to {'float32' if dtype.kind == 'f' else 'int32'}."
        )
    return Field(name, tuple(spec.shape), dtype)


def observation_fields(observation: ObservationSpec) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Fields of the leaves that are packed in the row, and of the stacked ones (their depth is shape[0])."""
    leaves = {"": observation} if isinstance(observation, ArraySpec) else dict(observation)
    plain, frames = [], []
    for key, spec in leaves.items():
        if not isinstance(key, str):
            raise ValueError(f"observation: the names of its arrays are strings, got {key!r}.")
        field = make_field("observation" + (f"/{key}" if key else ""), spec)
        if not spec.stacked:
            plain.append(field)
            continue
        if not spec.shape or field.dtype.name == "bfloat16":
            raise ValueError(f"{field.name}: stacked frames need a frame axis and a dtype of numpy's own, got {spec}.")
        frames.append(field._replace(name="frames" + (f"/{key}" if key else "")))
    return tuple(plain), tuple(frames)


def extras_fields(extras: Mapping[str, ArraySpec]) -> tuple[Field, ...]:
    """Fields of what the agent stores beside each step."""
    for name in extras:
        if not isinstance(name, str) or "/" in name:
            raise ValueError(f"extras/{name}: the names of fields are strings without '/', got {name!r}.")
        if not name or name in RESERVED:
            raise ValueError(f"extras/{name}: this name is a field of every row. Call the extra something else.")
    return tuple(make_field(f"extras/{name}", spec) for name, spec in extras.items())


def state_fields(state: Tree) -> tuple[tuple[Field, ...], Any]:
    """Fields of a recurrent state's leaves, and its treedef."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(state)
    return tuple(make_field(_path("state", path), spec) for path, spec in leaves), tree


def pack_dtype(fields: Iterable[Field]) -> np.dtype[Any]:
    """One packed record of the fields."""
    return np.dtype([(field.name, field.dtype, field.shape) for field in fields])


def named_arrays(layout: "Layout", row: Steps) -> dict[str, Any]:
    """A row's arrays by the names of the layout's fields; stacked leaves by their column's name."""
    stacked = {leaf.name for leaf in layout.frames}
    arrays = {name: getattr(row, name) for name in Steps._fields if name not in ("observation", "extras")}
    observation = {"": row.observation}
    if isinstance(row.observation, Mapping):
        observation = {f"/{key}": value for key, value in row.observation.items()}
    for key, value in observation.items():
        arrays[f"frames{key}" if f"frames{key}" in stacked else f"observation{key}"] = value
    arrays.update({f"extras/{name}": value for name, value in row.extras.items()})
    return arrays


def make_reader(layout: "Layout") -> Callable[[Steps], list[Any]]:
    """A quick named_arrays(): a row's arrays in the order of the layout's fields, then of its stacked leaves."""
    places: list[tuple[int, str | None]] = []  # index in Steps, and the key if it is a dict there
    for field in (*layout.fields, *layout.frames):
        name, _, key = _shown(field.name).partition("/")
        places.append((Steps._fields.index(name), key or None))

    def read(row: Steps) -> list[Any]:
        return [row[index] if key is None else row[index][key] for index, key in places]

    return read


def check_rows(layout: "Layout", row: Steps, state: Tree, environments: int) -> None:
    """Compares a row, as it is about to be appended, with the layout.

    Args:
        layout: what the tables were made for.
        row: [B, ...] numpy arrays.
        state: [B, ...] numpy arrays, () if the layout has none.
        environments: B.

    Raises:
        ValueError: for a field that is missing, not known, or of another dtype or shape.
    """
    got = named_arrays(layout, row)
    _compare(got, {field.name: field for field in (*layout.fields, *layout.frames)}, environments)
    leaves = {_path("state", path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}
    _compare(leaves, {field.name: field for field in layout.state}, environments)


def _compare(got: Mapping[str, Any], want: Mapping[str, Field], environments: int) -> None:
    said = "This layout was made from the environment's spec and the agent's extras and state: both must agree."
    for name in got.keys() - want.keys():
        raise ValueError(
            f"{_shown(name)} is appended, but not in the replay's layout {sorted(map(_shown, want))}. {said}"
        )
    for name, field in want.items():
        shape = (environments, *field.shape)
        if name not in got:
            raise ValueError(f"{_shown(name)} {field.dtype}{list(shape)} is missing from the appended row. {said}")
        array = got[name]
        if not isinstance(array, np.ndarray) or array.dtype != field.dtype or array.shape != shape:
            found = f"{array.dtype}{list(array.shape)}" if hasattr(array, "dtype") else type(array).__name__
            if hasattr(array, "dtype") and not isinstance(array, np.ndarray):
                found += f" ({type(array).__name__}, not numpy)"
            raise ValueError(f"{_shown(name)}: got {found}, want {field.dtype}{list(shape)} ([B, ...]). {said}")


def _shown(name: str) -> str:
    return "observation" + name.removeprefix("frames") if name.split("/")[0] == "frames" else name


def _path(root: str, path: Iterable[Any]) -> str:
    keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return "/".join([root, *keys])
