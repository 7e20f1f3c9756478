"""Replay shards for tests: each in a process of its own, filled by a plain Reverb writer."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
import reverb

from replay.dataset import ReplayReader
from replay.layout import Layout, make_layout
from replay.plan import ShardPlan, plan_shard
from replay.server import Shard
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.tables import TRAJECTORIES
from tests.ports import free_port, is_listening

ENVIRONMENT = EnvironmentSpec(observation=ArraySpec(shape=(2,), dtype="float32"), action=DiscreteAction(count=2))


def make_replay(shards: int, batch_size: int, in_flight: int = 16, **fields: Any) -> tuple[ShardPlan, Layout]:
    """A plan and a layout of small items: 2 rows, one unit."""
    spec = ReplaySpec(trace=1, period=1, **{"max_size": 1000 * shards, "min_size": shards, **fields})
    return plan_shard(spec, shards, batch_size, in_flight), make_layout(spec, ENVIRONMENT, {}, ())


class ShardProcess:
    """A shard that can be killed and started again on its port."""

    def __init__(self, plan: ShardPlan, layout: Layout) -> None:
        self.plan, self.layout = plan, layout
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: BaseProcess | None = None

    def start(self) -> "ShardProcess":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.replay.shards"])
        process = context.Process(target=_serve, args=(self.port, self.plan, self.layout, os.getpid()), daemon=True)
        process.start()
        self._process = process
        eventually(lambda: is_listening(self.port) or not process.is_alive(), 60)
        assert process.is_alive(), "the server's process ended"
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.join(10)
            self._process = None


@contextlib.contextmanager
def running(plan: ShardPlan, layout: Layout) -> Iterator[list[ShardProcess]]:
    """All shards of a plan, killed afterwards."""
    shards = [ShardProcess(plan, layout) for _ in range(plan.shards)]
    try:
        yield [shard.start() for shard in shards]
    finally:
        for shard in shards:
            shard.kill()


@pytest.fixture(scope="module", autouse=True)
def no_forkserver_left() -> Iterator[None]:
    """For every module that starts shards: ends the process that they are forked from."""
    yield
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def fill(
    address: str, layout: Layout, count: int, priority: Callable[[int], float] = lambda index: 1.0, start: int = 0
) -> None:
    """Inserts items whose actions (int32) are start, start + 1, ..."""
    with reverb.Client(address).trajectory_writer(num_keep_alive_refs=layout.units) as writer:
        for index in range(count):
            rows = np.zeros(layout.unit_rows, layout.row_dtype)
            rows["action"], rows["valid"], rows["version"] = start + index, True, 7
            for _ in range(layout.units):
                writer.append({"rows": rows.view(np.uint8).reshape(layout.unit_rows, -1)})
            trajectory = {"rows": writer.history["rows"][-layout.units :]}
            writer.create_item(TRAJECTORIES, priority(index), trajectory)
            writer.flush(block_until_num_items=20, timeout_ms=20_000)
        writer.flush(timeout_ms=20_000)


def keys_of(address: str, layout: Layout, count: int) -> list[int]:
    """Keys of `count` items of fill(), in its order; not for queues."""
    found: dict[int, int] = {}
    for sample in reverb.Client(address).sample(TRAJECTORIES, 50 * count, emit_timesteps=False):
        rows = np.ascontiguousarray(sample.data[0]).view(layout.row_dtype)
        found[int(rows["action"].flat[0])] = int(sample.info.key)
    return [key for _, key in sorted(found.items())]


def actions(layout: Layout, batch: Any) -> Any:
    """[B] the numbers that fill() gave the items."""
    steps, _ = layout.assemble(batch.arrays)
    return np.asarray(steps.action)[0]


def drain(reader: ReplayReader, batches: int, deadline_s: float = 60.0) -> list[Any]:
    """So many batches, or fails."""
    got: list[Any] = []
    end = time.monotonic() + deadline_s
    while len(got) < batches:
        assert time.monotonic() < end, f"only {len(got)} of {batches} batches came; stalled: {reader.stalled}"
        batch = reader.next(timeout_s=1.0)
        if batch is not None:
            got.append(batch)
    return got


def eventually(condition: Callable[[], Any], deadline_s: float = 30.0, what: str = "it") -> None:
    """Waits until the condition holds, or fails."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what} didn't happen within {deadline_s:g} s"
        time.sleep(0.02)


def _serve(port: int, plan: ShardPlan, layout: Layout, parent: int) -> None:
    shard = Shard(port, plan, layout)
    while os.getppid() and os.path.exists(f"/proc/{parent}"):
        time.sleep(0.2)
    shard.stop()
