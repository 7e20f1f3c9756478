"""How fast one process writes Pong's pixels to a replay server in another one, in four ways, in one run.

- steps: a TrajectoryWriter as it is usually used, one for each environment: one append a step, with the stack of four
  frames.
- ready: segments that were made beforehand, appended by a TrajectoryWriter in a loop: what Reverb itself can do.
- bare: the same loop, that gathers these segments from the rows itself with nothing around it but what it must.
- writer: our ReplayWriter, from the same rows.

Sequences are 81 rows, one every 40. The rows are real ones (Reverb compresses them), recorded before the clock starts.
The ways take turns, so that whatever else the machine does falls on all of them.
"""

import contextlib
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import reverb
from absl import app, flags

from configs.experiment import EnvironmentConfig
from launch.environments.factory import make_environments
from replay.fields import make_reader
from replay.layout import Layout, make_layout
from replay.spec import ArraySpec, ReplaySpec
from replay.steps import Steps
from replay.tables import TRAJECTORIES, to_tensor_specs
from replay.units import UnitBuffer
from replay.writer import ReplayWriter

ENVIRONMENTS = 8
ROWS = 240  # recorded of each environment, and written again and again
IN_FLIGHT = 48  # items; above 50 Reverb warns at every item
SPEC = ReplaySpec(trace=80, n_step=1, period=40)
EXTRAS = {"logits": ArraySpec(shape=(6,), dtype="float32")}
SECONDS = flags.DEFINE_float("seconds", 3.0, "Seconds of each way in one turn.")
TURNS = flags.DEFINE_integer("turns", 5, "Turns of each way.")


class Row(NamedTuple):
    """One way of writing."""

    name: str
    steps_per_second: float  # environment steps, median over the turns
    cpu: float  # microseconds of this process's CPU time a step, median over the turns: steadier on a busy machine
    times_ready: float  # median ratio to `ready` of the same turn
    times_bare: float  # median ratio to `bare` of the same turn
    times_steps: float  # median ratio to `steps` of the same turn


def serve(port: int, layout: Layout) -> None:
    """A server with a table for each way, small ones: writing is measured, not memory."""
    tables = [_table(TRAJECTORIES, to_tensor_specs(layout)), _table("steps", None)]
    reverb.Server(tables, port=port).wait()


def _table(name: str, signature: Any) -> reverb.Table:
    sampler, remover = reverb.selectors.Fifo(), reverb.selectors.Fifo()
    return reverb.Table(name, sampler, remover, 500, reverb.rate_limiters.MinSize(1), signature=signature)


@contextlib.contextmanager
def server(layout: Layout) -> Iterator[str]:
    """Runs a server process; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, layout), daemon=True)
    process.start()
    address = f"127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not _listens(port):
            if time.monotonic() > deadline or not process.is_alive():
                raise RuntimeError(f"The replay server of this benchmark doesn't answer at {address}.")
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.join(10)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def record() -> tuple[Layout, list[Steps]]:
    """Rows of Pong under random actions."""
    environments = make_environments(EnvironmentConfig(name="Pong-v5"), ENVIRONMENTS, seed=0, threads=1)
    layout = make_layout(SPEC, environments.spec, EXTRAS)
    rng = np.random.default_rng(0)
    shown, rows = environments.reset(), []
    for index in range(ROWS):
        action = rng.integers(0, 6, ENVIRONMENTS).astype(np.int32)
        following = environments.step(action)
        rows.append(
            Steps(
                observation=shown.observation.copy(),
                action=action,
                reward=following.reward.copy(),
                first=shown.first.copy(),
                terminated=following.terminated.copy(),
                truncated=following.truncated.copy(),
                valid=~(shown.terminated | shown.truncated),
                version=np.full(ENVIRONMENTS, index, np.int32),
                extras={"logits": rng.normal(size=(ENVIRONMENTS, 6)).astype(np.float32)},
            )
        )
        shown = following
    environments.close()
    return layout, rows


def write_steps(address: str, layout: Layout, rows: list[Steps], seconds: float) -> float:
    """One append for each step of each environment, stacks and all; steps a second."""
    length = SPEC.sequence_length
    client = reverb.Client(address)
    client.server_info(timeout=5)
    writers = [client.trajectory_writer(num_keep_alive_refs=length) for _ in range(ENVIRONMENTS)]
    names = [name for name in Steps._fields if name != "extras"]
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for row in rows:
            for b, writer in enumerate(writers):
                step = {name: getattr(row, name)[b] for name in names}
                step["logits"] = row.extras["logits"][b]
                writer.append(step)
                count = writer.episode_steps
                if count >= length and (count - length) % SPEC.period == 0:
                    item = {name: column[-length:] for name, column in writer.history.items()}
                    writer.create_item("steps", 1.0, item)
                    writer.flush(block_until_num_items=IN_FLIGHT // ENVIRONMENTS, timeout_ms=10_000)
            steps += ENVIRONMENTS
            if time.perf_counter() - start >= seconds:
                break
    for writer in writers:
        writer.flush(timeout_ms=10_000)
    rate = steps / (time.perf_counter() - start)
    for writer in writers:
        writer.close()
    return rate


class Bare:
    """A TrajectoryWriter of segments, and no more than Reverb needs around it."""

    def __init__(self, address: str, layout: Layout) -> None:
        client = reverb.Client(address)
        client.server_info(timeout=5)
        self._keep = layout.units * ENVIRONMENTS
        self.writer = client.trajectory_writer(num_keep_alive_refs=self._keep)
        for name in layout.signature:
            self.writer.configure((name,), num_keep_alive_refs=self._keep, max_chunk_length=1)
        self._back = [-1 - ENVIRONMENTS * unit for unit in reversed(range(layout.units))]
        self._appended = 0

    def append(self, columns: dict[str, Any]) -> None:
        """Appends a segment of every environment, and makes the items that end with it."""
        for b in range(ENVIRONMENTS):
            self.writer.append({name: column[b] for name, column in columns.items()})
            self._appended += 1
            if self._appended > self._keep - ENVIRONMENTS:
                history = self.writer.history
                self.writer.create_item(TRAJECTORIES, 1.0, {name: history[name][self._back] for name in columns})
                self.writer.flush(block_until_num_items=IN_FLIGHT, timeout_ms=10_000)


def write_ready(address: str, layout: Layout, segments: list[dict[str, Any]], seconds: float) -> float:
    """Segments that are ready; steps a second."""
    start, appended = time.perf_counter(), 0
    bare = Bare(address, layout)
    while time.perf_counter() - start < seconds:
        bare.append(segments[appended % len(segments)])
        appended += 1
    bare.writer.flush(timeout_ms=10_000)
    rate = appended * ENVIRONMENTS * SPEC.period / (time.perf_counter() - start)
    bare.writer.close()
    return rate


def write_bare(address: str, layout: Layout, rows: list[Steps], seconds: float) -> float:
    """Segments gathered from the rows in plain loops; steps a second."""
    start, period = time.perf_counter(), SPEC.period
    bare = Bare(address, layout)
    packed = np.zeros((ENVIRONMENTS, period + 1), layout.row_dtype)
    frames = np.zeros((ENVIRONMENTS, 3 + period + 1, 84, 84), np.uint8)
    columns = {"rows": packed.view(np.uint8).reshape(ENVIRONMENTS, period + 1, -1), "frames": frames}
    names = ("action", "reward", "first", "terminated", "truncated", "valid", "version")
    steps = filled = 0
    while time.perf_counter() - start < seconds:
        for row in rows:
            for name in names:
                packed[name][:, filled] = getattr(row, name)
            packed["extras/logits"][:, filled] = row.extras["logits"]
            frames[:, 3 + filled] = row.observation[:, -1]
            filled += 1
            steps += ENVIRONMENTS
            if filled == period + 1:
                bare.append(columns)
                packed[:, 0], frames[:, :4], filled = packed[:, -1], row.observation, 1
            if time.perf_counter() - start >= seconds:
                break
    bare.writer.flush(timeout_ms=10_000)
    rate = steps / (time.perf_counter() - start)
    bare.writer.close()
    return rate


def write_ours(address: str, layout: Layout, rows: list[Steps], seconds: float) -> float:
    """Through ReplayWriter, until everything is confirmed; steps a second."""
    start, steps = time.perf_counter(), 0
    writer = ReplayWriter([address], layout, SPEC, ENVIRONMENTS, items_in_flight=IN_FLIGHT)
    while time.perf_counter() - start < seconds:
        for row in rows:
            writer.append(row)
            steps += ENVIRONMENTS
            if time.perf_counter() - start >= seconds:
                break
    writer.close(10)
    rate = steps / (time.perf_counter() - start)
    counts = writer.counts
    if counts.items_unconfirmed or counts.items_lost:
        raise RuntimeError(f"Not everything arrived: {counts}")
    return rate


def make_segments(layout: Layout, rows: list[Steps]) -> list[dict[str, Any]]:
    """The units that the writer makes of the rows, [B, ...] each."""
    buffer, segments = UnitBuffer(layout, ENVIRONMENTS), []
    read = make_reader(layout)
    for row in rows:
        if buffer.append(read(row), []):
            columns = buffer.unit(buffer.units - 1)
            segments.append({name: column.copy() for name, column in columns.items() if column is not None})
    return segments


def measure(seconds: float = 3.0, turns: int = 5) -> list[Row]:
    """Each way in turns; the first turn warms up."""
    layout, rows = record()
    segments = make_segments(layout, rows)
    ways: dict[str, tuple[Callable[..., float], Any]] = {
        "steps": (write_steps, rows),
        "ready": (write_ready, segments),
        "bare": (write_bare, rows),
        "writer": (write_ours, rows),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    with server(layout) as address:
        for turn in range(turns + 1):
            for name, (write, data) in ways.items():
                start, used = time.perf_counter(), time.process_time()
                rate = write(address, layout, data, seconds if turn else min(seconds, 1.0))
                steps = rate * (time.perf_counter() - start)
                if turn:
                    rates[name].append(rate)
                    cpu[name].append(1e6 * (time.process_time() - used) / steps)
    return [
        Row(
            name,
            statistics.median(rate),
            statistics.median(cpu[name]),
            *(_ratio(rate, rates[other]) for other in ("ready", "bare", "steps")),
        )
        for name, rate in rates.items()
    ]


def _ratio(left: list[float], right: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


def main(arguments: list[str]) -> None:
    del arguments
    print(f"{'':8} {'steps/s':>10} {'CPU us':>7} {'x ready':>8} {'x bare':>8} {'x steps':>8}")
    for row in measure(SECONDS.value, TURNS.value):
        ratios = f"{row.times_ready:8.2f} {row.times_bare:8.2f} {row.times_steps:8.2f}"
        print(f"{row.name:8} {row.steps_per_second:10,.0f} {row.cpu:7.2f} {ratios}")


if __name__ == "__main__":
    app.run(main)
