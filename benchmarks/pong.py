"""IMPALA on Pong with all roles running, against the bound that its computation sets.

Environment, act and update each run alone first and last, in one thread, in this process; their CPU seconds for an
environment step add up, and the machine's cores over that sum is what no program can exceed.
"""

import os
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags

from agents.agent import Fleet
from agents.signatures import example_timestep, zero_batch
from benchmarks.programs import rates_of
from configs.presets import preset
from launch.assembly import assemble, key_of
from launch.environments.factory import make_environments


class Alone(NamedTuple):
    """CPU seconds for one environment step."""

    environment: float
    act: float
    update: float

    @property
    def total(self) -> float:
        """All three."""
        return sum(self)


class Figures(NamedTuple):
    """One measurement."""

    alone: Alone  # medians of before and after
    bound: float  # environment steps/s
    measured: float  # environment steps/s of the program


def measure_alone(config: str, seconds: float = 4.0) -> Alone:
    """Each part by itself, in the sizes that the program uses."""
    experiment = preset(config)
    parts = assemble(experiment)
    accelerated = experiment.topology.accelerated_actors > 0
    count = experiment.accelerated.batch_size if accelerated else experiment.environment.per_actor
    batch_size = experiment.learner.batch_size
    environments = make_environments(experiment.environment, count, 0, threads=1)
    environments.reset()
    rng = np.random.default_rng(0)
    environment = _cpu(lambda: environments.step(rng.integers(0, 6, count, np.int32)), seconds) / count
    environments.close()

    learner = jax.jit(parts.agent.init_learner)(key_of(0))
    params, state = parts.agent.actor_params(learner), parts.agent.init_actor(key_of(1), Fleet(0, 1, count))
    act, timestep = jax.jit(parts.agent.act), example_timestep(parts.environment, count)
    acting = _cpu(lambda: np.asarray(act(params, state, timestep)[0].action), seconds) / count

    batch = zero_batch(parts.agent, parts.environment, batch_size)
    update = jax.jit(parts.agent.update)
    updating = _cpu(lambda: jax.block_until_ready(update(learner, batch)), seconds)
    return Alone(environment, acting, updating / (batch_size * parts.agent.replay.period))


def _cpu(call: Any, seconds: float) -> float:
    """CPU seconds of this whole process for one call."""
    for _ in range(3):
        call()
    calls, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        call()
        calls += 1
    return (time.process_time() - cpu) / calls


def measure(config: str, seconds: float = 60.0) -> Figures:
    """Alone, together, alone again."""
    before = measure_alone(config)
    measured = rates_of(config, [], seconds).environment_steps
    after = measure_alone(config)
    alone = Alone(*(statistics.median(pair) for pair in zip(before, after, strict=True)))
    return Figures(alone, len(os.sched_getaffinity(0)) / alone.total, measured)


def main(_: list[str]) -> None:
    figures = measure(flags.FLAGS.config, flags.FLAGS.seconds)
    for name, value in figures.alone._asdict().items():
        print(f"{name:<12} alone {value * 1e6:8.1f} CPU us for an environment step")
    share = figures.measured / figures.bound
    print(f"bound {figures.bound:.0f} environment steps/s, program {figures.measured:.0f}: {share:.2f} of it")


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["NPROC"] = "1"
    flags.DEFINE_string("config", "impala_pong", "A preset on Pong, e.g. sebulba_pong: with an accelerated actor.")
    flags.DEFINE_float("seconds", 60.0, "How long the program is measured.")
    app.run(main)
