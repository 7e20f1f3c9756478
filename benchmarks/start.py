"""From the command to the first learner step, and the memory that is each role's own."""

import statistics
import time
from typing import NamedTuple

import psutil
from absl import app, flags

from benchmarks.programs import Running, program

CONFIG = "impala_cartpole"
MOMENTS = (  # (what, role, words in its log)
    ("preflight begins (all imported)", "preflight-0", "starts as process"),
    ("roles begin", "learner-0", "starts as process"),
    ("replay serves", "replay-1", "Serving"),
    ("first learner step", "learner-0", "First learner step done"),
)


class Figures(NamedTuple):
    """Of one start."""

    actors: int
    moments: dict[str, float]  # seconds from the command
    own: dict[str, float]  # MiB that a role shares with nobody (USS), the largest of its kind
    total: float  # MiB of all processes together, what they share counted once (PSS)


def measure_start(actors: int) -> Figures:
    """Starts 2 shards, `actors` actors, learner, evaluator and monitor once."""
    with program(CONFIG, [f"topology.actors={actors}", "run.target_return=inf"]) as running:
        moments = {what: running.wait_for(role, words) for what, role, words in MOMENTS}
        moments[f"actor {actors - 1} begins"] = running.wait_for(f"actor-{actors - 1}", "starts as process")
        _wait_for_steps(running, 200)
        return Figures(actors, moments, *_memory(running))


def measure(repeats: int = 3, few: int = 4, many: int = 8) -> tuple[list[Figures], list[Figures]]:
    """Starts with few and with many actors in turns."""
    pairs = [(measure_start(few), measure_start(many)) for _ in range(repeats)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _wait_for_steps(running: Running, steps: int) -> None:
    while running.status().get("state", {}).get("learner_steps", 0) < steps:
        if running.process.poll() is not None:
            raise RuntimeError(f"the program ended: {running.status()}")
        time.sleep(0.2)


def _memory(running: Running) -> tuple[dict[str, float], float]:
    own: dict[str, float] = {}
    for name, pid in running.pids().items():
        if name.startswith("preflight"):
            continue
        kind = name.rsplit("-", 1)[0]
        own[kind] = max(own.get(kind, 0.0), psutil.Process(pid).memory_full_info().uss / 2**20)
    launcher = psutil.Process(running.process.pid)
    everybody = [launcher, *launcher.children(recursive=True)]
    return own, sum(process.memory_full_info().pss for process in everybody) / 2**20


def main(_: list[str]) -> None:
    few, many = measure(flags.FLAGS.repeats)
    for figures in (few, many):
        print(f"{figures[0].actors} actors: medians of {len(figures)} starts")
        for what in figures[0].moments:
            print(f"  {what:<36}{statistics.median(each.moments[what] for each in figures):7.2f} s")
        for kind in figures[0].own:
            print(f"  own memory of a {kind:<20}{statistics.median(each.own[kind] for each in figures):7.0f} MiB")
        print(f"  all processes together              {statistics.median(each.total for each in figures):7.0f} MiB")
    further = many[0].actors - few[0].actors
    last = "first learner step"
    seconds = statistics.median(m.moments[last] - f.moments[last] for f, m in zip(few, many, strict=True)) / further
    memory = statistics.median(m.total - f.total for f, m in zip(few, many, strict=True)) / further
    print(f"each further actor: {seconds:.2f} s until the first learner step, {memory:.0f} MiB in all")


if __name__ == "__main__":
    flags.DEFINE_integer("repeats", 3, "Starts of each kind.")
    app.run(main)
