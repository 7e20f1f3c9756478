"""Pytrees as pieces of bytes and back."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict

from replay import manifest
from replay.manifest import Leaf, Manifest, VariableMismatch


class Pair(NamedTuple):
    left: Any
    right: Any


def make(leaves: tuple[Leaf, ...], **changes: Any) -> Manifest:
    return Manifest(publisher="p", sequence=1, version=7, leaves=leaves, **changes)


def travel(tree: Any) -> Any:
    """As a publisher and a fetcher do it, without the wire."""
    leaves, arrays = manifest.to_host(tree)
    about = make(leaves)
    pieces = np.stack(list(manifest.cut(about, arrays)))
    about = dataclasses.replace(about, digest=manifest.digest_of(manifest.cut(about, arrays)))
    about = Manifest.from_bytes(about.to_bytes())
    return jax.tree.unflatten(jax.tree.structure(tree), manifest.join(about, pieces))


ODD = {
    "none": None,
    "int": 3,
    "float": 2.5,
    "bool": True,
    "list": [np.zeros((0, 3), np.float32), (np.float64(1.5), np.arange(6, dtype=np.int16).reshape(2, 3).T)],
    "frozen": FrozenDict({"a": jnp.arange(5, dtype=jnp.bfloat16), "b": FrozenDict({})}),
    "pair": Pair(np.array(9, np.uint8), {"big": np.arange(300_000, dtype=np.float32)}),
    "small": [jnp.float8_e4m3fn(2), jnp.asarray([1, -2], jnp.int4), np.arange(3, dtype=">f4"), np.complex64(1 + 2j)],
}


def test_an_odd_pytree_comes_back_equal_and_of_the_same_structure():
    got = travel(ODD)
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(ODD))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(ODD), strict=True):
        assert isinstance(a, np.ndarray)
        np.testing.assert_array_equal(a, np.asarray(b))
        assert not a.flags.writeable
    assert got["frozen"]["a"].dtype == jnp.bfloat16
    assert got["int"].dtype == np.int32  # as JAX takes a Python int
    assert got["list"][0].shape == (0, 3)
    assert got["pair"].left.shape == ()


def test_described_as_jax_describes_it():
    tree = {"a": jnp.zeros((2, 3)), "b": 1, "c": [2.0]}
    assert manifest.describe(tree) == manifest.describe(jax.eval_shape(lambda: tree))
    assert manifest.describe(tree)[0] == Leaf(path="['a']", dtype="float32", shape=(2, 3))


def test_leaves_start_at_multiples_of_64_bytes():
    leaves = tuple(Leaf(path=str(n), dtype="uint8", shape=(n,)) for n in (1, 64, 65, 0))
    assert make(leaves).offsets == [0, 64, 128, 256, 256]


def test_few_bytes_are_one_piece_and_many_are_bounded_in_number():
    def pieces(nbytes: int) -> tuple[int, int]:
        about = make((Leaf(path="", dtype="uint8", shape=(nbytes,)),))
        return about.pieces, about.piece

    assert pieces(0) == (1, 64)
    assert pieces(100) == (1, 128)
    assert pieces(32 << 20) == (128, 256 << 10)
    count, size = pieces(2_500_000_000)
    assert count <= manifest.MAX_PIECES
    assert size < 2**30
    assert count * size >= 2_500_000_000


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (300,), (63, 1, 0, 700), (128, 128), (5, 0, 0, 1000, 3)])
def test_pieces_hold_every_byte_whatever_the_leaves_sizes(sizes, monkeypatch):
    monkeypatch.setattr(manifest, "PIECE", 128)
    tree = [np.arange(n, dtype=np.uint8) + k for k, n in enumerate(sizes)]
    for a, b in zip(travel(tree), tree, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_flipped_bit_and_swapped_pieces_are_noticed():
    tree = [np.arange(300_000, dtype=np.float32)]
    leaves, arrays = manifest.to_host(tree)
    pieces = np.stack(list(manifest.cut(make(leaves), arrays)))
    about = make(leaves, digest=manifest.digest_of(pieces))
    np.testing.assert_array_equal(manifest.join(about, pieces.copy())[0], tree[0])  # control
    flipped = pieces.copy()
    flipped[1, 17] ^= 4
    for wrong in (flipped, pieces[::-1].copy()):
        with pytest.raises(ValueError, match="digest"):
            manifest.join(about, wrong)
    with pytest.raises(ValueError, match="manifest says"):
        manifest.join(about, pieces[:-1])


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ({"a": np.zeros(4, np.float32), "b": np.zeros(2)}, r"\['a'\].*got float32\[4\], want float32\[3\]"),
        ({"a": np.zeros(3, np.int32), "b": np.zeros(2)}, r"\['a'\].*got int32\[3\], want float32\[3\]"),
        ({"a": np.zeros(3, np.float32)}, r"\['b'\].*got no such leaf, want float64\[2\]"),
        ({"a": np.zeros(3, np.float32), "b": np.zeros(2), "c": 1}, r"\['c'\].*got int32\[\], want no such leaf"),
    ],
)
def test_a_mismatch_names_the_leaf_what_came_and_what_was_expected(got, words):
    want = manifest.describe({"a": np.zeros(3, np.float32), "b": np.zeros(2)})
    manifest.check(want, want, "h:1")  # control
    with pytest.raises(VariableMismatch, match=words):
        manifest.check(manifest.describe(got), want, "h:1")


@pytest.mark.parametrize("leaf", ["text", object(), np.array(["x"]), jax.random.key(0), np.array([None])])
def test_what_is_no_array_of_numbers_is_refused_with_its_path(leaf):
    with pytest.raises(TypeError, match=r"\['x'\]"):
        manifest.to_host({"x": leaf})
