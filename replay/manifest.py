"""A pytree of arrays as equal pieces of bytes, and the manifest that says what the bytes are.

Pieces, not one array: Reverb aborts the process at a chunk of 2 GiB, and compresses on the caller's thread while it
holds the interpreter. Pieces of 256 KiB hold it for 0.4 ms at a time, and went in and out in half the time that one
array of 32 MB took. Float and uint8 pieces are equally fast; bytes tensors, which Reverb doesn't compress, are slower
to read.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

PIECE = 256 << 10  # bytes; multiples of it where there would be more than MAX_PIECES
MAX_PIECES = 2048
ROUND = 1024  # bytes, in multiples of which a manifest is sent
ALIGNMENT = 64  # bytes between which leaves start, so that JAX can use them where they lie

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class VariableMismatch(ValueError):
    """The published weights are not of the structure this process expects."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One array of a pytree."""

    path: str  # as jax.tree_util.keystr writes it
    dtype: str
    shape: tuple[int, ...]

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * _dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What one publication is. `sequence` counts the publications of one publisher: later ones are newer, whatever
    their versions say.
    """

    publisher: str
    sequence: int
    version: int
    leaves: tuple[Leaf, ...]
    digest: str = ""  # of the data
    published: float = 0.0  # when, by the publisher's clock, in seconds since the epoch

    @functools.cached_property
    def offsets(self) -> list[int]:
        """Where each leaf starts, then where the data ends; bytes."""
        offsets = [0]
        for leaf in self.leaves:
            offsets.append(offsets[-1] + _aligned(leaf.nbytes))
        return offsets

    @functools.cached_property
    def piece(self) -> int:
        """Bytes of each piece."""
        total = self.offsets[-1]
        return min(PIECE * max(1, -(-total // (PIECE * MAX_PIECES))), max(ALIGNMENT, total))

    @functools.cached_property
    def pieces(self) -> int:
        """How many there are, at least one."""
        return max(1, -(-self.offsets[-1] // self.piece))

    def to_bytes(self) -> Bytes:
        """JSON, as a uint8 vector; its length changes with the leaves only, nearly always."""
        encoded = json.dumps(dataclasses.asdict(self)).encode()
        return np.frombuffer(encoded.ljust(-(-len(encoded) // ROUND) * ROUND), np.uint8)

    @classmethod
    def from_bytes(cls, data: Bytes) -> "Manifest":
        """What `to_bytes` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        fields = json.loads(data.tobytes())
        leaves = tuple(Leaf(path=x["path"], dtype=x["dtype"], shape=tuple(x["shape"])) for x in fields.pop("leaves"))
        return cls(leaves=leaves, **fields)


def describe(tree: Any) -> tuple[Leaf, ...]:
    """The leaves of a pytree of arrays, `jax.ShapeDtypeStruct`s or Python numbers (which count as JAX counts them)."""
    return tuple(_describe(jax.tree_util.keystr(path), leaf) for path, leaf in _leaves(tree))


def to_host(tree: Any) -> tuple[tuple[Leaf, ...], list[np.ndarray[Any, Any]]]:
    """Leaves of `tree` as numpy arrays in native byte order; device arrays are copied from all devices at once.

    Raises:
        TypeError: for a leaf that is no array of numbers.
    """
    leaves = _leaves(tree)
    for _, leaf in leaves:
        if isinstance(leaf, jax.Array) and not _is_key(leaf):
            leaf.copy_to_host_async()
    described = tuple(_describe(jax.tree_util.keystr(path), leaf) for path, leaf in leaves)
    arrays = [np.asarray(leaf, dtype=_dtype(about.dtype)) for (_, leaf), about in zip(leaves, described, strict=True)]
    return described, arrays


def cut(manifest: Manifest, arrays: Sequence[np.ndarray[Any, Any]]) -> Iterator[Bytes]:
    """Yields the pieces, uint8 [manifest.piece] each, without a copy of those that lie within one leaf.

    (Copying all into one buffer first costs more than compressing it: 55 ms for 32 MB, page faults mostly.)
    """
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    offsets, first = manifest.offsets, 0
    for start in range(0, manifest.pieces * manifest.piece, manifest.piece):
        stop = start + manifest.piece
        while first < len(flat) - 1 and offsets[first + 1] <= start:
            first += 1
        if flat and offsets[first] <= start and stop <= offsets[first] + len(flat[first]):
            yield flat[first][start - offsets[first] : stop - offsets[first]]
            continue
        piece = np.zeros(manifest.piece, np.uint8)
        for offset, data in zip(offsets[first:], flat[first:], strict=False):
            if offset >= stop:
                break
            begin, end = max(start, offset), min(stop, offset + len(data))
            if begin < end:
                piece[begin - start : end - start] = data[begin - offset : end - offset]
        yield piece


def join(manifest: Manifest, pieces: Bytes) -> list[np.ndarray[Any, Any]]:
    """The leaves, read-only views into `pieces` (uint8 [pieces, piece]).

    Raises:
        ValueError: the pieces are not those that the manifest tells of.
    """
    if pieces.dtype != np.uint8 or pieces.shape != (manifest.pieces, manifest.piece):
        raise ValueError(
            f"weights of version {manifest.version} came as {pieces.dtype}{list(pieces.shape)}, but their manifest "
            f"says uint8[{manifest.pieces}, {manifest.piece}]"
        )
    digest = digest_of(pieces)
    if digest != manifest.digest:
        raise ValueError(f"weights of version {manifest.version} have digest {digest}, want {manifest.digest}")
    flat = pieces.reshape(-1)
    flat.flags.writeable = False
    return [
        flat[offset : offset + leaf.nbytes].view(_dtype(leaf.dtype)).reshape(leaf.shape)
        for offset, leaf in zip(manifest.offsets, manifest.leaves, strict=False)
    ]


def digest_of(pieces: Any) -> str:
    """A digest of pieces, in order: a hash of their 64-bit sums (1.3 ms for 32 MB; a CRC of all takes 10 ms)."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(np.add.reduce(np.ascontiguousarray(piece).view(np.uint64)).tobytes())
    return digest.hexdigest()[:16]


def check(got: Sequence[Leaf], want: Sequence[Leaf], address: str) -> None:
    """Raises VariableMismatch, naming the first leaf that differs, what came and what was expected."""
    got_by_path, want_by_path = {leaf.path: leaf for leaf in got}, {leaf.path: leaf for leaf in want}
    differing = [p for p in {**want_by_path, **got_by_path} if got_by_path.get(p) != want_by_path.get(p)]
    if not differing and [leaf.path for leaf in got] == [leaf.path for leaf in want]:
        return
    path = differing[0] if differing else next(a.path for a, b in zip(got, want, strict=True) if a.path != b.path)
    raise VariableMismatch(
        f"the weights at {address} don't fit: leaf {path or '(the root)'}: "
        f"got {got_by_path.get(path, 'no such leaf')}, want {want_by_path.get(path, 'no such leaf')} "
        f"({max(1, len(differing))} leaves of {len(want)} differ). The learner and this process were built from "
        f"different configs: start both with the same `agent`, `agent_config` and `environment`."
    )


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _describe(path: str, leaf: Any) -> Leaf:
    if type(leaf) in (bool, int, float, complex):
        return Leaf(path=path, dtype=jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype).name, shape=())
    if _is_key(leaf):
        raise TypeError(
            f"leaf {path} is a JAX random key, which has no bytes: publish jax.random.key_data(key) instead"
        )
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or np.dtype(dtype).hasobject or np.dtype(dtype).kind in "USmM" or np.dtype(dtype).names:
        raise TypeError(f"leaf {path} is {type(leaf).__name__} of dtype {dtype}: weights must be arrays of numbers")
    return Leaf(path=path, dtype=np.dtype(dtype).name, shape=tuple(leaf.shape))


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.extended)


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
