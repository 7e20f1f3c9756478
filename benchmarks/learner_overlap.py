"""Whether the next batch is read and put on the devices while an update runs: a timeline of the learner's loop.

A shard in a process of its own, full of items of Pong frames; the learner's own reader and compiled step, in the order
that its loop has them. Three clocks: when the reader's thread puts a batch on the devices, when an update is under way,
and when the loop waits for a batch.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from jax.sharding import Mesh

from agents.data_parallel import AXIS
from benchmarks.replay_read import serve
from configs.overrides import apply_overrides
from configs.presets import preset
from launch.assembly import assemble, key_of
from launch.learner import make_update, shardings_of
from replay.dataset import ReplayBatch, ReplayReader

CONFIG = "apex_pong"
OVERRIDES = ("topology.shards=1", "agent_config.replay.max_size=500", "agent_config.replay.min_size=100",
             "agent_config.replay.samples_per_insert=0")  # fmt: skip
SHOWN = 4  # updates in the timeline
WIDTH = 80  # characters of it


class Interval(NamedTuple):
    """From when until when, in seconds of time.perf_counter()."""

    begin: float
    end: float


class _Reader(ReplayReader):
    """Notes when it puts batches on the devices."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.placed: list[Interval] = []
        super().__init__(*arguments, **options)

    def _convert(self, flat: Any) -> ReplayBatch:
        begin = time.perf_counter()
        batch = super()._convert(flat)
        jax.block_until_ready(batch.arrays)
        self.placed.append(Interval(begin, time.perf_counter()))
        return batch


class Timeline(NamedTuple):
    """What happened within the measured time."""

    placed: Sequence[Interval]
    updates: Sequence[Interval]
    waits: Sequence[Interval]

    @property
    def overlap(self) -> float:
        """Share of the placing that fell into updates."""
        both = sum(max(0.0, min(p.end, u.end) - max(p.begin, u.begin)) for p in self.placed for u in self.updates)
        return both / sum(p.end - p.begin for p in self.placed)


def measure(seconds: float) -> Timeline:
    """The loop of launch.learner, without what comes after an update."""
    experiment = apply_overrides(preset(CONFIG), OVERRIDES)
    parts, learner = assemble(experiment), experiment.learner
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    replicated, split = shardings_of(mesh)
    process, address, _ = serve(parts.plan, parts.layout)
    reader = _Reader(
        [address], parts.layout, parts.plan, learner.batch_size,
        samples_in_flight=learner.samples_in_flight, prefetch=learner.prefetch, sharding=split,
    )  # fmt: skip
    try:
        return _loop(
            reader, make_update(parts, mesh), jax.jit(parts.agent.init_learner, out_shardings=replicated), seconds
        )
    finally:
        reader.close()
        process.kill()
        process.join(10)


def _loop(reader: _Reader, update: Any, init: Callable[[Any], Any], seconds: float) -> Timeline:
    state, previous = init(key_of(0)), None
    begins: list[float] = []
    ends: list[tuple[int, float]] = []
    waits: list[Interval] = []
    start = end = math.inf

    def note(index: int, metrics: Any) -> None:
        jax.block_until_ready(metrics)
        ends.append((index, time.perf_counter()))

    while (now := time.perf_counter()) < end:
        batch = reader.next(timeout_s=60.0)
        assert batch is not None, "no batch within 60 s"
        waits.append(Interval(now, time.perf_counter()))
        begins.append(time.perf_counter())
        state, metrics, _ = update(state, (batch.arrays, batch.info))
        threading.Thread(target=note, args=(len(begins) - 1, metrics)).start()
        jax.block_until_ready(previous)
        previous = metrics
        if len(begins) == 3:  # compiled, and the pipeline is full
            jax.block_until_ready(metrics)
            start = time.perf_counter()
            end = start + seconds
    jax.block_until_ready(previous)
    while len(ends) < len(begins):
        time.sleep(0.01)
    # An update waits for the state of the one before it.
    done = dict(ends)
    updates = [Interval(max(begin, done.get(index - 1, begin)), done[index]) for index, begin in enumerate(begins)]
    return Timeline(*([each for each in kind if start <= each.begin < end] for kind in (reader.placed, updates, waits)))


def _draw(name: str, intervals: Sequence[Interval], begin: float, end: float) -> str:
    cells = [" "] * WIDTH
    for each in intervals:
        first, last = (int((moment - begin) / (end - begin) * WIDTH) for moment in each)
        for cell in range(max(0, first), min(WIDTH, last + 1)):
            cells[cell] = "#"
    return f"{name:>8} |{''.join(cells)}|"


def main(_: list[str]) -> None:
    timeline = measure(flags.FLAGS.loop_seconds)
    begin, end = timeline.updates[1].begin, timeline.updates[1 + SHOWN].begin
    print(f"{CONFIG}: {SHOWN} of {len(timeline.updates)} updates, {(end - begin) * 1e3:.0f} ms")
    for name in ("updates", "placed", "waits"):
        print(_draw(name, getattr(timeline, name), begin, end))
    total = timeline.updates[-1].end - timeline.updates[0].begin
    placing, waiting = (sum(each.end - each.begin for each in kind) for kind in (timeline.placed, timeline.waits))
    print(
        f"updates/s {len(timeline.updates) / total:.1f}; placing a batch takes "
        f"{placing / len(timeline.placed) * 1e3:.2f} ms, {timeline.overlap:.1%} of it while an update runs; "
        f"the loop waits {waiting / total:.2%} of its time"
    )


if __name__ == "__main__":
    flags.DEFINE_float("loop_seconds", 10.0, "How long is measured.")
    app.run(main)
