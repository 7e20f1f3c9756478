"""Items a second out of replay: the reader's batches on the device, against bare TrajectoryDatasets in the same run.

Servers are processes of their own, full of items that don't compress: small ones of a few numbers a step, and sequences
of frames, each stored once. The bare side is the fastest plain one known:
an interleave of one TrajectoryDataset a shard, each batched to the full batch size and prefetched, iterated as numpy
without unpacking, weighing or putting anything on a device (so a batch is of one shard). Both sides take turns.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import jax
import numpy as np
import portpicker
import reverb
import tensorflow as tf
from absl import app, flags

from replay.dataset import ReplayReader
from replay.layout import Layout, make_layout
from replay.plan import ShardPlan, plan_shard
from replay.server import Shard
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.tables import TRAJECTORIES, to_tensor_specs

SHARDS = (1, 2, 4)
TURNS = 9  # of each side


class Kind(NamedTuple):
    """What the items are, and how many are read at once."""

    observation: ArraySpec
    trace: int
    items: int  # in each shard
    batch: int

    @property
    def in_flight(self) -> int:
        """Items that each shard is asked for ahead."""
        return 2 * self.batch


KINDS = {
    "vectors": Kind(ArraySpec(shape=(42,), dtype="float32"), 20, 2_000, 256),  # Ape-X takes batches of 512
    "frames": Kind(ArraySpec(shape=(4, 84, 84), dtype="uint8", stacked=True), 20, 300, 16),
}

_seconds = flags.DEFINE_float("seconds", 60.0, "How long one kind of items takes, starts left out.")


class Row(NamedTuple):
    """Medians over the turns."""

    shards: int
    bare: float  # items/s
    reader: float  # items/s
    ratio: float  # reader / bare, of turns that follow each other


def measure(kind: Kind, seconds: float = 60.0, shards: Sequence[int] = SHARDS) -> list[Row]:
    """One row for each number of shards."""
    return [_measure(kind, count, seconds / len(shards) / TURNS / 2) for count in shards]


def _measure(kind: Kind, shards: int, turn: float) -> Row:
    layout, plan = _replay(kind, shards)
    processes = [serve(plan, layout) for _ in range(shards)]
    addresses = [address for _, address, _ in processes]
    try:
        bare: list[float] = []
        reader: list[float] = []
        for index in range(TURNS + 1):
            sides = [(_bare(kind, addresses, layout), bare), (_reader(kind, addresses, layout, plan), reader)]
            for batches, rates in sides if index % 2 else reversed(sides):
                rate = kind.batch * _rate(batches, turn)
                if index:  # the first warms up
                    rates.append(rate)
        ratio = statistics.median(ours / theirs for theirs, ours in zip(bare, reader, strict=True))
        return Row(shards, statistics.median(bare), statistics.median(reader), ratio)
    finally:
        for process, _, _ in processes:
            process.kill()
            process.join(10)


def _rate(batches: Iterator[Any], seconds: float) -> float:
    for _ in range(5):
        next(batches)
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        next(batches)
        count += 1
    close: Callable[[], None] = getattr(batches, "close", lambda: None)
    close()
    return count / spent


def _reader(kind: Kind, addresses: Sequence[str], layout: Layout, plan: ShardPlan) -> Iterator[Any]:
    reader = ReplayReader(addresses, layout, plan, kind.batch, samples_in_flight=kind.in_flight, prefetch=2)
    try:
        while True:
            batch = reader.next(timeout_s=30.0)
            assert batch is not None, "no batch within 30 s"
            yield jax.block_until_ready(batch.arrays)
    finally:
        reader.close()


def _bare(kind: Kind, addresses: Sequence[str], layout: Layout) -> Iterator[Any]:
    specs = to_tensor_specs(layout)

    def slot(address: tf.Tensor) -> Any:
        return reverb.TrajectoryDataset(
            address,
            TRAJECTORIES,
            dtypes={name: spec.dtype for name, spec in specs.items()},
            shapes={name: spec.shape for name, spec in specs.items()},
            max_in_flight_samples_per_worker=kind.in_flight,
        ).batch(kind.batch, drop_remainder=True)

    slots: Any = tf.data.Dataset.from_tensor_slices(list(addresses))
    count = len(addresses)
    dataset = slots.interleave(slot, cycle_length=count, num_parallel_calls=count, deterministic=False).prefetch(2)
    yield from dataset.as_numpy_iterator()


def _replay(kind: Kind, shards: int) -> tuple[Layout, ShardPlan]:
    spec = ReplaySpec(trace=kind.trace, period=kind.trace, max_size=kind.items * shards, min_size=shards)
    layout = make_layout(spec, EnvironmentSpec(observation=kind.observation, action=DiscreteAction(count=4)), {}, ())
    return layout, plan_shard(spec, shards, kind.batch, kind.in_flight)


def serve(plan: ShardPlan, layout: Layout) -> tuple[BaseProcess, str, Any]:
    """The process, its address, and the pipe that keeps it up."""
    port = portpicker.pick_unused_port()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_server, args=(port, plan, layout, theirs), daemon=True)
    process.start()
    assert ours.poll(120), "the server did not come up"
    ours.recv()
    return process, f"127.0.0.1:{port}", ours


def _run_server(port: int, plan: ShardPlan, layout: Layout, pipe: Any) -> None:
    shard = Shard(port, plan, layout)
    rng = np.random.default_rng(port)
    with reverb.Client(shard.address).trajectory_writer(num_keep_alive_refs=layout.units) as writer:
        for index in range(plan.max_size + layout.units - 1):
            unit = {}
            for name, (shape, dtype) in layout.unit_signature.items():
                unit[name] = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
            writer.append(unit)
            if index >= layout.units - 1:
                writer.create_item(TRAJECTORIES, 1.0, {name: writer.history[name][-layout.units :] for name in unit})
            if index % 20 == 0:
                writer.flush()
    pipe.send("up")
    pipe.poll(None)  # until killed, or the benchmark is gone


def main(argv: Sequence[str]) -> None:
    del argv
    for name, kind in KINDS.items():
        layout, _ = _replay(kind, 1)
        print(f"{name}: {layout.item_nbytes} bytes each, batch {kind.batch}, {kind.in_flight} in flight for each shard")
        print("shards   bare items/s   reader items/s   ratio")
        for row in measure(kind, _seconds.value):
            print(f"{row.shards:6d} {row.bare:14,.0f} {row.reader:16,.0f} {row.ratio:7.2f}", flush=True)


if __name__ == "__main__":
    app.run(main)
