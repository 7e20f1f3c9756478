"""What one address before two shards does to prioritised replay, and to what it is right for. Needs HAProxy.

Two shards of 300 and 100 items of equal priority, each a process of its own, are used by the project's own reader,
priority updates and writers: at their own addresses, through HAProxy as deploy/haproxy.cfg has it (each call is given
to a shard at random), giving each call to the next shard, and giving each connection to a shard.
"""

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import portpicker
import reverb
from absl import app

from benchmarks.replay_read import KINDS, serve
from replay.dataset import ReplayReader
from replay.layout import Layout, make_layout
from replay.plan import ShardPlan, plan_shard
from replay.priorities import PriorityUpdater
from replay.server import table_sizes
from replay.spec import DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.tables import TRAJECTORIES

CONFIG = (Path(__file__).resolve().parents[1] / "deploy" / "haproxy.cfg").read_text()
WAYS = {
    "each shard's own address": None,
    "deploy/haproxy.cfg": CONFIG,
    "calls in turns": CONFIG.replace("balance random", "balance roundrobin"),
    "connections": CONFIG.replace("balance random", "balance leastconn")
    .replace("mode http", "mode tcp")
    .replace("proto h2", ""),
}
SIZES = 300, 100  # items in the shards
BATCH = 32
BATCHES = 60
WRITERS = 6  # processes
WRITTEN = 10  # items of each
DEADLINE = 10.0  # seconds for what may never come


class Row(NamedTuple):
    """One way to reach the shards."""

    name: str
    seen: float  # share of all items that were sampled at least once
    landed: float  # share of the priority updates that reached their item
    batches: float  # batches/s while the second shard is empty; 0: none within DEADLINE
    writers: Sequence[int]  # that each shard got


@contextlib.contextmanager
def balancer(shards: Sequence[str], config: str) -> Iterator[str]:
    """HAProxy before two shards; its address."""
    address = f"127.0.0.1:{portpicker.pick_unused_port()}"
    names = {"BALANCER": address, "SHARD_0": shards[0], "SHARD_1": shards[1]}
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write(config)
        file.flush()
        process = subprocess.Popen(["haproxy", "-db", "-f", file.name], env={**os.environ, **names})
        try:
            time.sleep(2.0)  # until it has checked its shards
            yield address
        finally:
            process.terminate()
            process.wait(timeout=10)


def replay(size: int) -> tuple[ShardPlan, Layout]:
    """A shard of so many items."""
    kind = KINDS["vectors"]
    spec = ReplaySpec(trace=kind.trace, period=kind.trace, sampler="prioritized", max_size=size, min_size=1)
    environment = EnvironmentSpec(observation=kind.observation, action=DiscreteAction(count=4))
    return plan_shard(spec, 1, BATCH, BATCH), make_layout(spec, environment, {}, ())


def measure(name: str, config: str | None) -> Row:
    """One way, with shards of its own; without a config at their own addresses."""
    plans = [replay(size) for size in SIZES]
    served = [serve(*plan) for plan in plans]
    shards = [address for _, address, _ in served]
    try:
        before = contextlib.nullcontext() if config is None else balancer(shards, config)
        with before as address:
            addresses = [address] if address else shards
            seen, landed = read_and_update(addresses, shards, plans[0])
            spread = write(addresses, shards)
            reverb.Client(shards[1]).reset(TRAJECTORIES)
            return Row(name, seen, landed, rate(addresses, plans[0]), spread)
    finally:
        for process, _, _ in served:
            process.kill()
            process.join(10)


def read_and_update(
    addresses: Sequence[str], shards: Sequence[str], replayed: tuple[ShardPlan, Layout]
) -> tuple[float, float]:
    """The share of all items that are ever sampled, and of new priorities, one for each of them, that arrive."""
    sampled: set[int] = set()
    updater = PriorityUpdater(addresses)
    with reading(addresses, replayed) as reader:
        for _ in range(BATCHES):
            batch = reader.next(timeout_s=DEADLINE)
            if batch is None:
                break
            first = [place for place, key in enumerate(batch.key.tolist()) if key not in sampled]
            sampled.update(batch.key.tolist())
            if first:
                updater.update(batch.shard[first], batch.key[first], np.full(len(first), 1.5))
    time.sleep(2.0)  # until they were sent
    updater.close(timeout=5.0)
    now = {**priorities(shards[0]), **priorities(shards[1])}
    return len(sampled) / sum(SIZES), sum(now.get(key) == 1.5 for key in sampled) / max(1, len(sampled))


def priorities(address: str) -> Mapping[int, float]:
    """Of all items of a shard, by key; sampled from it until all were seen, nearly for certain."""
    client, found = reverb.Client(address), {}
    for sample in client.sample(TRAJECTORIES, num_samples=20 * max(SIZES), emit_timesteps=False):
        found[int(sample.info.key)] = float(sample.info.priority)
    return found


@contextlib.contextmanager
def reading(addresses: Sequence[str], replayed: tuple[ShardPlan, Layout]) -> Iterator[ReplayReader]:
    """The learner's reader."""
    plan, layout = replayed
    reader = ReplayReader(addresses, layout, plan, BATCH, samples_in_flight=BATCH, prefetch=1)
    try:
        yield reader
    finally:
        reader.close()


def rate(addresses: Sequence[str], replayed: tuple[ShardPlan, Layout]) -> float:
    """Batches/s over a few seconds; 0 where they stop coming."""
    with reading(addresses, replayed) as reader:
        if reader.next(timeout_s=DEADLINE) is None:
            return 0.0
        count, began = 0, time.monotonic()
        while time.monotonic() - began < 3.0:
            if reader.next(timeout_s=DEADLINE) is None:
                return 0.0
            count += 1
        return count / (time.monotonic() - began)


def write(addresses: Sequence[str], shards: Sequence[str]) -> list[int]:
    """How many of several writing processes each shard got; at its own addresses a writer takes them in turns."""
    for shard in shards:
        reverb.Client(shard).reset(TRAJECTORIES)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_write, args=(addresses[index % len(addresses)],), daemon=True)
        for index in range(WRITERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [table_sizes(shard, DEADLINE)[TRAJECTORIES] // WRITTEN for shard in shards]


def _write(address: str) -> None:
    _, layout = replay(max(SIZES))
    unit: dict[str, Any] = {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.unit_signature.items()}
    client = reverb.Client(address)
    client.server_info(timeout=10)  # as every client of a shard asks first: the signature
    with client.trajectory_writer(num_keep_alive_refs=layout.units) as writer:
        for index in range(WRITTEN + layout.units - 1):
            writer.append(unit)
            if index >= layout.units - 1:
                writer.create_item(TRAJECTORIES, 1.0, {name: writer.history[name][-layout.units :] for name in unit})
        writer.flush(timeout_ms=10_000)


def main(_: Sequence[str]) -> int:
    if shutil.which("haproxy") is None:
        print("haproxy isn't here: install Debian's package haproxy.", file=sys.stderr)
        return 1
    print("way                       items sampled  updates landed  batches/s, one empty  writers a shard")
    for name, config in WAYS.items():
        row = measure(name, config)
        print(f"{row.name:<26}{row.seen:>13.2f}{row.landed:>16.2f}{row.batches:>22.1f}  {row.writers}", flush=True)
    return 0


if __name__ == "__main__":
    app.run(main)
