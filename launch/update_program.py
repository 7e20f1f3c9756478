"""The learner's compiled step, and what of it crosses devices."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from launch.assembly import Parts, key_of
from launch.learner import make_update, shardings_of
from replay.steps import SampleInfo

KINDS = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "reduce-scatter",
    "ragged-all-to-all",
)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_OPERATION = re.compile(rf"^\s+(?:ROOT )?%[\w.-]+ = (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_WHILE = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(r"(?:calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")


class Collective(NamedTuple):
    """An operation that all devices take part in."""

    kind: str  # one of KINDS
    nbytes: int  # of its result, on one device
    times: int  # in one run of the program


def compile_update(
    parts: Parts, mesh: Mesh, batch_size: int, count: int = 1, options: Mapping[str, Any] | None = None
) -> Any:
    """The learner's steps for `count` global batches split over the mesh, as they are run: a jax.stages.Compiled.

    `options` are XLA's.
    """
    replicated, split = shardings_of(mesh)
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated),
        jax.eval_shape(parts.agent.init_learner, key_of(0)),
    )
    arrays: dict[str, Any] = {
        name: jax.ShapeDtypeStruct((batch_size, *shape), dtype, sharding=split)
        for name, (shape, dtype) in parts.layout.signature.items()
    }
    info = (jax.ShapeDtypeStruct((batch_size,), dtype, sharding=split) for dtype in (np.float32, np.float32, np.int32))
    lowered = make_update(parts, mesh).lower(state, *[(arrays, SampleInfo(*info))] * count)
    return lowered.compile(compiler_options=dict(options or {}))


def collectives_in(text: str) -> list[Collective]:
    """All collectives of a compiled program, from its text (HLO as XLA prints it).

    Raises:
        ValueError: one is in a loop whose number of rounds XLA doesn't know.
    """
    bodies, entry = _computations(text)
    return list(_walk(bodies, entry, 1))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation by its name, and the name of the first to run."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            name = match[2]
            bodies[name] = []
            entry = name if match[1] else entry
        elif name:
            bodies[name].append(line)
    return bodies, entry


def _walk(bodies: dict[str, list[str]], name: str, times: int) -> Iterable[Collective]:
    for line in bodies[name]:
        if match := _OPERATION.match(line):
            yield Collective(match[2], _nbytes(match[1]), times)
        elif match := _WHILE.search(line):
            inner = [found for part in match.groups() for found in _walk(bodies, part, 1)]
            trips = _TRIPS.search(line)
            if inner and trips is None:
                raise ValueError(f"collectives in a loop of unknown length: {line.strip()[:200]}")
            yield from (found._replace(times=times * found.times * int(trips[1])) for found in inner if trips)
        else:
            branches = _BRANCHES.search(line)
            called = [*_CALLED.findall(line), *(re.findall(r"[\w.-]+", branches[1]) if branches else ())]
            for part in called:
                yield from _walk(bodies, part, times)


def _nbytes(shape: str) -> int:
    """Of an array or a tuple of them, e.g. "(f32[64,8]{1,0}, pred[])"."""
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * (int(bits or 8) // 8)
        for _, bits, sizes in _ARRAY.findall(shape)
    )
