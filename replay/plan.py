"""The totals of a replay divided over its shards, and refused where they can't work.

The limiter of a shard (samples_per_insert > 0) allows a sample while inserts x ratio - samples >= least, and an insert
while (inserts + 1) x ratio - samples <= most, where least and most lie `error_buffer` below and above
min_size x ratio. It counts samples when the learner's dataset fetches them ahead, not when they are used.

Nothing here imports Reverb or TensorFlow.
"""

import dataclasses
import math
from typing import Any

from replay.layout import STATE, Layout
from replay.spec import Remover, ReplaySpec, Sampler

CHUNK_OVERHEAD = 1_100  # bytes that Reverb keeps of its own for each column of an append (measured)
ITEM_OVERHEAD = 150  # bytes of an item itself: its key, references to chunks, place in the selectors (measured)
MOST_ITEMS = 2**31 - 1  # in one table; Reverb counts with 32 bits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardPlan:
    """The trajectories table of one shard. Made by plan_shard(); counts are of this shard alone."""

    shards: int  # in the whole program
    max_size: int  # items
    min_size: int  # items before the first sample
    queue: bool
    sampler: Sampler
    remover: Remover
    priority_exponent: float
    samples_per_insert: float  # 0: free running
    error_buffer: float  # samples

    @property
    def prioritized(self) -> bool:
        """Whether samples follow priorities."""
        return self.sampler == "prioritized" and not self.queue


def plan_shard(spec: ReplaySpec, shards: int, batch_size: int, samples_in_flight: int) -> ShardPlan:
    """Divides a replay over its shards.

    Args:
        spec: the replay, in totals.
        shards: replay servers.
        batch_size: items in a learner's batch.
        samples_in_flight: items that the learner's dataset of each shard asks for ahead.

    Raises:
        ValueError: for numbers that can't work; the message names the field, the value, why, and one that works.
    """
    _check_counts(shards, batch_size, samples_in_flight)
    _check_division("max_size", spec.max_size, shards)
    if spec.max_size // shards > MOST_ITEMS:
        most = MOST_ITEMS * shards
        _refuse("replay.max_size", spec.max_size, f"Reverb counts a shard's items with 32 bits, so {shards} shards "
                f"hold at most {most}", f"{most} or less, or use more topology.shards")  # fmt: skip
    if not math.isfinite(spec.priority_exponent) or spec.priority_exponent < 0:
        _refuse("replay.priority_exponent", spec.priority_exponent, "it must be a finite number >= 0", "0.6")
    if not math.isfinite(spec.samples_per_insert) or spec.samples_per_insert < 0:
        _refuse("replay.samples_per_insert", spec.samples_per_insert, "a learner can't take less than no samples for "
                "each item", "0 (free running) or a finite ratio above 0")  # fmt: skip
    if spec.queue:
        _check_queue(spec, batch_size)
    else:
        _check_sizes(spec, shards)
        if spec.samples_per_insert:
            _check_limiter(spec, shards, batch_size, samples_in_flight)
    return ShardPlan(
        shards=shards,
        max_size=spec.max_size // shards,
        min_size=1 if spec.queue else spec.min_size // shards,
        queue=spec.queue,
        sampler=spec.sampler,
        remover=spec.remover,
        priority_exponent=spec.priority_exponent,
        samples_per_insert=1.0 if spec.queue else float(spec.samples_per_insert),
        error_buffer=spec.error_buffer / shards,
    )


def sub_batch(queue: bool, shards: int, batch_size: int) -> int:
    """Items that a shard answers at once; divides batch_size.

    A queue's are single: what would wait for the rest of a sub-batch might be all there is.
    """
    if queue:
        return 1
    return next(size for size in range(max(1, batch_size // shards), 0, -1) if batch_size % size == 0)


def memory_of(spec: ReplaySpec, layout: Layout, shards: int) -> int:
    """Bytes of full trajectories tables, all shards together, of data that doesn't compress.

    Shards share no memory, but each holds only its own items, so the number of shards adds no more than the rows that
    a shard's first items overlap with.
    """
    columns = sum(1 for name in layout.unit_signature if name != STATE)
    per_unit = layout.unit_nbytes + columns * CHUNK_OVERHEAD
    per_state = (layout.state_dtype.itemsize + CHUNK_OVERHEAD) if layout.state else 0
    units = spec.max_size * layout.stride + shards * (layout.units - layout.stride)
    return units * per_unit + spec.max_size * (per_state + ITEM_OVERHEAD)


def _check_counts(shards: int, batch_size: int, samples_in_flight: int) -> None:
    counts = (
        ("topology.shards", shards, "experience needs somewhere to go"),
        ("learner.batch_size", batch_size, "a batch holds at least one sequence"),
        ("learner.samples_in_flight", samples_in_flight, "a dataset that asks for nothing gets nothing"),
    )
    for field, value, why in counts:
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{field}={value!r} must be an integer >= 1: {why}. Set {field}=1 or more.")


def _check_sizes(spec: ReplaySpec, shards: int) -> None:
    if not isinstance(spec.min_size, int) or spec.min_size < 1:
        _refuse("replay.min_size", spec.min_size, "the first sample needs an item in each of the "
                f"{shards} shards", f"{shards} or more")  # fmt: skip
    _check_division("min_size", spec.min_size, shards)
    if spec.min_size > spec.max_size:
        _refuse("replay.min_size", spec.min_size, f"replay holds at most max_size={spec.max_size} items, so the first "
                "sample would never come", f"{spec.max_size} or less")  # fmt: skip


def _check_queue(spec: ReplaySpec, batch_size: int) -> None:
    if spec.max_size < batch_size:
        _refuse("replay.max_size", spec.max_size, "the queues of all shards together must hold a batch of "
                f"learner.batch_size={batch_size}", f"{batch_size} or more")  # fmt: skip
    if spec.samples_per_insert not in (0, 1):
        _refuse("replay.samples_per_insert", spec.samples_per_insert, "a queue gives each item exactly once, so this "
                "ratio can never be met", "0 or 1, or queue=False")  # fmt: skip


def _check_limiter(spec: ReplaySpec, shards: int, batch_size: int, samples_in_flight: int) -> None:
    """A shard's buffer must hold one insert's samples, what is fetched ahead, and its part of the first batch."""
    buffer = spec.error_buffer
    piece = sub_batch(False, shards, batch_size)
    rounds = math.ceil(batch_size / piece / shards)  # sub-batches that each shard must give to the first batch
    ratio = spec.samples_per_insert
    reasons = {
        max(1.0, ratio): f"one insert alone is worth samples_per_insert={ratio} samples",
        float(samples_in_flight + 1): "the limiter counts the samples that the learner's dataset fetches ahead "
        f"(learner.samples_in_flight={samples_in_flight} for each shard); with less slack than these, actors and "
        "learner stop for each other at every step",
        float(rounds * piece): f"a learner that waits for its first batch (learner.batch_size={batch_size}) must get "
        "it from the first min_size items",
    }
    need = max(reasons)
    if not math.isfinite(buffer) or buffer / shards < need:
        _refuse("replay.error_buffer", buffer, f"divided over topology.shards={shards} it leaves {buffer / shards:g} "
                f"samples, and at least {need:g} are needed: {reasons[need]}",
                f"{need * shards:g}, or learner.samples_in_flight lower")  # fmt: skip


def _check_division(field: str, value: int, shards: int) -> None:
    if value % shards == 0:
        return
    below, above = value // shards * shards, -(-value // shards) * shards
    nearest = f"{below} or {above}" if below else f"{above}"
    _refuse(f"replay.{field}", value, f"it must divide evenly over topology.shards={shards}", nearest)


def _refuse(field: str, value: Any, why: str, works: str) -> None:
    raise ValueError(f"agent_config.{field}={value!r} can't work: {why}. Set {field.split('.')[-1]}={works}.")
