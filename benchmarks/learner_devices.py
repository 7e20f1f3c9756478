"""What an update costs on 1, 2 and 4 devices, and how many bytes cross between them.

The devices are parts of this machine's CPU with one thread each, so the sum of the work can't shrink below what its
cores do together: what is shown is the overhead of splitting. Each number of devices has a process of its own; all take
turns, twice. Below it, what several updates in one call save.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from jax.sharding import Mesh

from agents.data_parallel import AXIS
from configs.presets import preset
from launch.assembly import assemble, key_of
from launch.learner import replicate, shardings_of
from launch.update_program import collectives_in, compile_update
from replay.placing import Placer
from replay.steps import SampleInfo

CONFIGS = ("apex_cartpole", "impala_cartpole", "ppo_cartpole", "r2d2_cartpole", "impala_pong")
DEVICES = (1, 2, 4)
CALLS = (1, 8)  # updates in one call, on one device
SMALL = ("apex_cartpole", "impala_cartpole")  # where a call costs as much as an update


class Figures(NamedTuple):
    """Of one agent on one number of devices."""

    wall: float  # seconds for one update, its batch on the devices already
    cpu: float  # seconds of all cores together
    nbytes: int  # that cross in one update: each device adds as many to sums over all devices
    collectives: int  # such sums in one update
    weights: int  # bytes


def measure(config: str, count: int, seconds: float) -> Figures:
    """On all devices of this process, `count` updates in a call."""
    experiment = preset(config)
    parts, batch_size = assemble(experiment), experiment.learner.batch_size
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    replicated, split = shardings_of(mesh)
    update, place = compile_update(parts, mesh, batch_size, count), Placer(split).place
    state = jax.tree.map(lambda leaf: replicate(leaf, replicated), jax.jit(parts.agent.init_learner)(key_of(0)))
    arrays = {
        name: place(np.zeros((batch_size, *shape), dtype)) for name, (shape, dtype) in parts.layout.signature.items()
    }
    info = SampleInfo(
        place(np.full(batch_size, 1e-3, np.float32)),
        place(np.ones(batch_size, np.float32)),
        place(np.full(batch_size, 1000, np.int32)),
    )
    batches = [(arrays, info)] * count
    for _ in range(3):
        state, metrics, _ = update(state, *batches)
    jax.block_until_ready(metrics)
    updates, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        state, metrics, _ = update(state, *batches)
        jax.block_until_ready(metrics)
        updates += count
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = collectives_in(update.as_text())
    return Figures(
        wall / updates,
        cpu / updates,
        sum(each.nbytes * each.times for each in found) // count,
        sum(each.times for each in found) // count,
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(parts.params_structure())),
    )


def measure_in_child(config: str, devices: int, count: int, seconds: float) -> Figures:
    """In a process with so many devices, of one thread each."""
    variables = {
        "JAX_PLATFORMS": "cpu",
        "NPROC": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false "
        "intra_op_parallelism_threads=1",
    }
    command = [sys.executable, "-m", "benchmarks.learner_devices", f"--alone={config}", f"--calls={count}"]
    done = subprocess.run(
        [*command, f"--seconds={seconds}"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Figures(*json.loads(done.stdout.splitlines()[-1]))


def main(_: list[str]) -> None:
    if flags.FLAGS.alone:
        print(json.dumps(measure(flags.FLAGS.alone, flags.FLAGS.calls, flags.FLAGS.seconds)))
        return
    print("agent            devices  update ms  CPU ms  beside 1  sums  bytes that cross  of them gradients")
    for config in flags.FLAGS.configs:
        found: dict[int, list[Figures]] = {devices: [] for devices in DEVICES}
        for devices in DEVICES * flags.FLAGS.rounds:
            found[devices].append(measure_in_child(config, devices, 1, flags.FLAGS.seconds))
        _show(config, found)
    for config in flags.FLAGS.small:
        calls: dict[int, list[Figures]] = {count: [] for count in CALLS}
        for count in CALLS * flags.FLAGS.rounds:
            calls[count].append(measure_in_child(config, 1, count, flags.FLAGS.seconds))
        rates = (f"{count}: {1 / statistics.median(each.wall for each in calls[count]):,.0f}/s" for count in CALLS)
        print(f"{config:<16} updates by updates in one call, {', '.join(rates)}", flush=True)


def _show(config: str, found: dict[int, list[Figures]]) -> None:
    def median(devices: int, field: str) -> Any:
        return statistics.median(getattr(each, field) for each in found[devices])

    for devices in DEVICES:
        wall, cpu, last = median(devices, "wall"), median(devices, "cpu"), found[devices][-1]
        gradients = last.nbytes // last.weights * last.weights  # a few sums more than whole gradients
        print(
            f"{config:<16} {devices:>7}  {wall * 1e3:>9.2f}  {cpu * 1e3:>6.2f}  {wall / median(1, 'wall'):>8.2f}  "
            f"{last.collectives:>4}  {last.nbytes:>16,}  {gradients:>17,}",
            flush=True,
        )


if __name__ == "__main__":
    flags.DEFINE_float("seconds", 3.0, "How long each is measured, each time.")
    flags.DEFINE_list("configs", list(CONFIGS), "Presets.")
    flags.DEFINE_integer("rounds", 2, "How often each is measured.")
    flags.DEFINE_list("small", list(SMALL), "Presets for several updates in a call.")
    flags.DEFINE_integer("calls", 1, "Updates in a call; for the children.")
    flags.DEFINE_string("alone", "", "Measure this preset in this process; for the children.")
    app.run(main)
