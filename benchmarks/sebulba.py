"""Accelerated actors: what threads and asynchronous environments gain, and a whole program at full speed.

python -m benchmarks.sebulba [--part=uneven|cartpole]

uneven: 16 environments whose steps take 10 ms, or 200 ms one time in 20, behind one real actor and one real shard.
cartpole: 16 CartPoles, MLP 64x64, PPO, all roles running; on an accelerated actor, and on two CPU actors beside it.
"""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import psutil
from absl import app, flags
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from benchmarks.programs import Running, program
from configs.experiment import Experiment
from configs.overrides import apply_overrides
from configs.presets import preset
from launch import accelerated_actor
from launch.assembly import assemble, key_of
from launch.local import free_addresses
from launch.roles import Assignment
from replay.metrics import MetricsReader
from replay.server import Shard
from replay.variables import VariablePublisher

ENVIRONMENTS = 16
USUAL, RARE, SHARE = 0.010, 0.200, 0.05  # seconds of a step, and how many take the longer
MEAN = USUAL * (1 - SHARE) + RARE * SHARE
SETTLE = 3.0  # seconds before a measurement


class UnevenCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A CartPole whose steps take unevenly long, without taking CPU time."""

    def __init__(self) -> None:
        super().__init__(gymnasium.wrappers.TimeLimit(CartPoleEnv(), 500))

    def step(self, action: Any) -> Any:
        """Sleeps, then steps."""
        time.sleep(RARE if self.np_random.random() < SHARE else USUAL)
        return super().step(action)


class Acting(NamedTuple):
    """One measurement of an actor."""

    steps: float  # environment steps/s
    environments: float  # share of an acting thread's time that it waited for environments
    device: float  # and for the policy
    queue: float  # and for room on the way to the writing thread


def uneven(threads: int, asynchronous: bool) -> Experiment:
    """The same 16 environments behind so many threads."""
    each = ENVIRONMENTS // threads
    return apply_overrides(
        preset("sebulba_cartpole"),
        [
            "environment.library=gymnasium", "environment.name=benchmarks.sebulba:UnevenCartPole",
            f"accelerated.threads={threads}", f"accelerated.environments={each}",
            f"accelerated.batch_size={max(1, each // 4) if asynchronous else each}",
            f"accelerated.environment_threads={each}", "actor.report_period=0.2",
        ],
    )  # fmt: skip


def measure_actor(experiment: Experiment, seconds: float) -> Acting:
    """The role as the program runs it; a shard that is never full, the weights of a fresh learner."""
    parts = assemble(experiment)
    plan = dataclasses.replace(parts.plan, max_size=1_000_000)
    (address,) = free_addresses(1)
    shard = Shard(int(address.rpartition(":")[2]), plan, parts.layout)
    publisher, reader, stop = VariablePublisher([address]), MetricsReader([address]), threading.Event()
    publisher.publish(parts.agent.actor_params(parts.agent.init_learner(key_of(0))), 0)
    assignment = Assignment(
        role="accelerated_actor", index=0, experiment=experiment, addresses=(address,), run_directory=Path()
    )
    thread = threading.Thread(target=accelerated_actor.run, args=(assignment, stop))
    thread.start()
    try:
        while not _newest(reader).get("environment_steps"):
            if not thread.is_alive():
                raise RuntimeError("the actor ended before it acted")
        time.sleep(SETTLE)
        begun = _newest(reader)
        time.sleep(seconds)
        ended = _newest(reader)
    finally:
        stop.set()
        thread.join()
        reader.close(timeout=1.0)
        publisher.close(timeout=1.0)
        shard.stop()
    past = ended["time"] - begun["time"]
    names = ("environment_steps", "seconds_environments", "seconds_device", "seconds_waiting")
    return Acting(*((ended[name] - begun[name]) / past for name in names))


def _newest(reader: MetricsReader) -> dict[str, Any]:
    """The newest record of the actor, with its time."""
    newest: dict[str, Any] = {}
    while not newest:
        records = [record for record in reader.read(timeout_s=0.5) if record.role == "accelerated_actor"]
        newest = {**records[-1].values, "time": records[-1].time} if records else {}
    return newest


def report_uneven(seconds: float) -> None:
    """Threads 1, 2, 4; the synchronous run of each just before the asynchronous one."""
    print(f"{ENVIRONMENTS} environments; none could do more than {ENVIRONMENTS / MEAN:.0f} steps/s in all")
    print("threads            steps/s  environments busy   a thread waits for: environments, policy, queue")
    for threads in (1, 2, 4):
        rates = []
        for asynchronous in (False, True):
            acting = measure_actor(uneven(threads, asynchronous), seconds)
            rates.append(acting.steps)
            print(
                f"{threads} {'asynchronous' if asynchronous else 'synchronous':<13}{acting.steps:11.0f}"
                f"{acting.steps * MEAN / ENVIRONMENTS:17.0%}{acting.environments:30.0%}{acting.device:9.0%}"
                f"{acting.queue:9.0%}",
                flush=True,
            )
        print(f"  asynchronous is {rates[1] / rates[0]:.2f} times synchronous")


def report_program(name: str, overrides: list[str], seconds: float) -> float:
    """Environment steps/s of the whole program, and what each role did with its time."""
    with program("sebulba_cartpole", ["run.target_return=inf", *overrides]) as running:
        running.wait_for("learner-0", "First learner step done")
        time.sleep(2 * SETTLE)
        first, cpu = running.status(), cpu_seconds(running)
        time.sleep(seconds)
        last, after = running.status(), cpu_seconds(running)
    past = last["time"] - first["time"]

    def rate(value: Any) -> float:
        return float((value(last["state"]) - value(first["state"])) / past)

    steps = rate(lambda state: state["environment_steps"])
    print(f"{name}: {steps:.0f} environment steps/s, {rate(lambda state: state['learner_steps']):.1f} updates/s, lag "
          f"{last['state']['policy_lag']:.1f}")  # fmt: skip
    for role in cpu:
        print(f"  {role:<22}{(after[role] - cpu[role]) / past:5.0%} of a core")
    for counter in sorted(last["state"]["counts"]):
        if ".seconds" in counter:
            share = rate(lambda state, counter=counter: state["counts"].get(counter, 0.0))
            print(f"  {counter:<40}{share:5.0%} of its time")
    return steps


def cpu_seconds(running: Running) -> dict[str, float]:
    """Each role's, so far."""
    found = {}
    for role, pid in running.pids().items():
        if psutil.pid_exists(pid):
            times = psutil.Process(pid).cpu_times()
            found[role] = times.user + times.system
    return found


def main(_: list[str]) -> None:
    part, seconds = flags.FLAGS.part, flags.FLAGS.seconds
    if part in ("", "uneven"):
        report_uneven(seconds / 4)
    if part in ("", "cartpole"):
        cpu = ["topology.actors=2", "topology.accelerated_actors=0", f"environment.per_actor={ENVIRONMENTS // 2}"]
        rates = [
            report_program("accelerated actor", [], seconds),
            report_program("two CPU actors", cpu, seconds),
            report_program("accelerated actor", [], seconds),
        ]
        print(f"accelerated / CPU actors {(rates[0] + rates[2]) / 2 / rates[1]:.2f}")


if __name__ == "__main__":
    flags.DEFINE_string("part", "", "uneven or cartpole; both if empty.")
    flags.DEFINE_float("seconds", 20.0, "How long a program is measured; an actor alone a quarter of it.")
    app.run(main)
