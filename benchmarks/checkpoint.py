"""What a checkpoint of a replay table costs: seconds, bytes, and how long who reads and writes is held up.

A shard in a process of its own, full of frames that don't compress; the learner's reader takes batches from it, and an
actor's process inserts an item every 20 ms and waits until it is confirmed. Quiet stretches and checkpoints in turns.
"""

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import portpicker
import reverb
from absl import app, flags

from replay.dataset import ReplayReader
from replay.layout import Layout, make_layout
from replay.plan import ShardPlan, plan_shard
from replay.shard_checkpoints import ShardCheckpoints
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.tables import TRAJECTORIES

TRACE, BATCH, IN_FLIGHT = 20, 16, 64
PAUSE = 0.02  # seconds between two insertions
TURNS = 3

_mib = flags.DEFINE_integer("mib", 1024, "MiB of frames in the table.")
_quiet = flags.DEFINE_float("quiet", 15.0, "Seconds without a checkpoint, before each one.")


class Stretch(NamedTuple):
    """What reader and actor saw in one stretch of time."""

    seconds: float
    batches: int  # read
    reader_gap: float  # longest, between two batches, seconds
    inserts: int  # confirmed
    insert_median: float  # seconds
    insert_longest: float  # seconds


def main(argv: Sequence[str]) -> None:
    del argv
    layout, plan = _replay(_mib.value)
    with tempfile.TemporaryDirectory() as root:
        began = time.monotonic()
        server, port, shard = _start(_serve, plan, layout, Path(root))
        actor, _, inserts = _start(_insert, plan, layout, port)
        reader = ReplayReader([f"127.0.0.1:{port}"], layout, plan, BATCH, samples_in_flight=IN_FLIGHT, prefetch=2)
        print(f"filled {plan.max_size} items in {time.monotonic() - began:.0f} s", flush=True)
        try:
            _watch(reader, inserts, threading.Event(), 5.0)  # warms up
            columns = ("s", "batches/s", "longest gap s", "inserts/s", "median ms", "longest s")
            print(" " * 12 + "".join(f"{column:>14}" for column in columns))
            saves = []
            for _ in range(TURNS):
                _show("quiet", _watch(reader, inserts, threading.Event(), _quiet.value))
                told: list[tuple[float, int]] = []
                done = threading.Event()
                waiting = threading.Thread(target=_save, args=(shard, told, done))
                waiting.start()
                _show("checkpoint", _watch(reader, inserts, done, 600.0))
                waiting.join()
                saves.append(told[0])
            seconds, size = statistics.median(each[0] for each in saves), saves[-1][1]
            print(
                f"one checkpoint: {seconds:.1f} s (median), {size / 2**20:,.0f} MiB, {size / 2**20 / seconds:.0f} MiB/s"
            )
        finally:
            reader.close()
            for process in (actor, server):
                process.kill()
                process.join(10)
        began = time.monotonic()
        server, _, _ = _start(_restore, plan, layout, Path(root))
        print(f"restored by a new server {time.monotonic() - began:.1f} s after its start, imports included")
        server.kill()
        server.join(10)


def _watch(reader: ReplayReader, inserts: Any, until: threading.Event, seconds: float) -> Stretch:
    """Reads batches until the event is set or the time is over."""
    inserts.send("begin")
    began = last = time.monotonic()
    longest, batches = 0.0, 0
    while last - began < seconds and not until.is_set():
        assert reader.next(timeout_s=60.0) is not None, "no batch within 60 s"
        now = time.monotonic()
        longest, last, batches = max(longest, now - last), now, batches + 1
    inserts.send("end")
    latencies = inserts.recv()
    return Stretch(last - began, batches, longest, len(latencies), statistics.median(latencies), max(latencies))


def _show(name: str, stretch: Stretch) -> None:
    rate, inserts = stretch.batches / stretch.seconds, stretch.inserts / stretch.seconds
    numbers = (
        f"{stretch.seconds:.1f}", f"{rate:.1f}", f"{stretch.reader_gap:.3f}", f"{inserts:.1f}",
        f"{1000 * stretch.insert_median:.1f}", f"{stretch.insert_longest:.3f}",
    )  # fmt: skip
    print(f"{name:12}" + "".join(f"{number:>14}" for number in numbers), flush=True)


def _save(shard: Any, told: list[tuple[float, int]], done: threading.Event) -> None:
    shard.send("save")
    told.append(shard.recv())
    done.set()


def _replay(mib: int) -> tuple[Layout, ShardPlan]:
    frame = ArraySpec(shape=(4, 84, 84), dtype="uint8", stacked=True)
    environment = EnvironmentSpec(observation=frame, action=DiscreteAction(count=4))
    items = mib * 2**20 // (TRACE * 84 * 84)
    spec = ReplaySpec(trace=TRACE, period=TRACE, max_size=items, min_size=1)
    return make_layout(spec, environment, {}, ()), plan_shard(spec, 1, BATCH, IN_FLIGHT)


def _start(function: Any, plan: ShardPlan, layout: Layout, place: Any) -> tuple[BaseProcess, int, Any]:
    """A process, the port that it was given to serve at, and a pipe to it; returns when it says that it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    port = portpicker.pick_unused_port()
    process = context.Process(target=function, args=(plan, layout, place, port, theirs), daemon=True)
    process.start()
    assert ours.poll(600), "it didn't come up within 600 s"
    ours.recv()
    return process, port, ours


def _serve(plan: ShardPlan, layout: Layout, root: Path, port: int, pipe: Any) -> None:
    checkpoints = ShardCheckpoints(root, plan, layout, kept=1)
    shard = checkpoints.start(port)
    with _Inserter(shard.address, layout) as inserter:
        for index in range(plan.max_size):
            inserter.insert(confirmed=index % 20 == 0)
    pipe.send("full")
    while pipe.recv() == "save":
        began = time.monotonic()
        manifest = checkpoints.save(shard)
        pipe.send((time.monotonic() - began, sum(file["bytes"] for file in manifest.files.values())))


def _restore(plan: ShardPlan, layout: Layout, root: Path, port: int, pipe: Any) -> None:
    shard = ShardCheckpoints(root, plan, layout, kept=1).start(port)
    pipe.send(shard.address)
    pipe.poll(None)


def _insert(plan: ShardPlan, layout: Layout, server: int, port: int, pipe: Any) -> None:
    del plan, port
    with _Inserter(f"127.0.0.1:{server}", layout) as inserter:
        pipe.send("ready")
        while pipe.recv() == "begin":
            latencies = []
            while not pipe.poll(PAUSE):
                began = time.monotonic()
                inserter.insert(confirmed=True)
                latencies.append(time.monotonic() - began)
            pipe.recv()
            pipe.send(latencies)


class _Inserter:
    """Items of frames that are each stored once."""

    def __init__(self, address: str, layout: Layout) -> None:
        self._layout = layout
        self._rng = np.random.default_rng(0)
        self._writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=layout.units)

    def __enter__(self) -> "_Inserter":
        for _ in range(self._layout.units - 1):
            self._append()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def insert(self, *, confirmed: bool) -> None:
        """One item; waits for the server's word where that is asked for."""
        self._append()
        history = self._writer.history
        columns = {name: history[name][-self._layout.units :] for name in self._layout.unit_signature}
        self._writer.create_item(TRAJECTORIES, 1.0, columns)
        if confirmed:
            self._writer.flush()

    def _append(self) -> None:
        self._writer.append(
            {
                name: np.frombuffer(self._rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
                for name, (shape, dtype) in self._layout.unit_signature.items()
            }
        )


if __name__ == "__main__":
    app.run(main)
