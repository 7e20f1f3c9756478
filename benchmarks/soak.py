"""Whether a program stays as it is over an hour: the memory of each role, and how long an insertion takes.

python -m benchmarks.soak --config=apex_cartpole --minutes=60 --output=docs/results/soak
"""

import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import psutil
from absl import app, flags
from scipy.stats import theilslopes

from benchmarks.programs import Running, program
from replay.canary import Canary

PERIOD = 10.0  # seconds between two samples
WARM_UP = 1800.0  # seconds that don't count, at most a third of the whole: heaps grow to what the busiest moment needs
TIMEOUT = 30.0  # seconds for a canary: a busy machine keeps a process waiting for some


class Sample(NamedTuple):
    """At one moment."""

    seconds: float
    rss: dict[str, float]  # MiB, by role
    own: dict[str, float]  # the part of it that is no file's: the kernel drops and reads pages of libraries as it likes
    insert_ms: float  # the median of the shards
    sample_ms: float
    environment_steps: int
    learner_steps: int


def watch(running: Running, minutes: float) -> Iterator[Sample]:
    """A sample every PERIOD, from the first learner step on."""
    running.wait_for("learner-0", "First learner step done", 600.0)
    addresses = [
        running.log(f"replay-{index}").rsplit("Serving", 1)[1].split(" at ")[1].split()[0].rstrip(".")
        for index in range(len(running.status()["state"]["shards"]))
    ]
    canaries = [Canary(address) for address in addresses]
    pids, began = running.pids(), time.monotonic()
    processes = {name: psutil.Process(pid) for name, pid in pids.items() if not name.startswith("preflight")}
    while (seconds := time.monotonic() - began) < 60 * minutes:
        insert_ms, sample_ms = np.median([canary.probe(TIMEOUT) for canary in canaries], axis=0) * 1e3
        state = running.status()["state"]
        memory = {name: process.memory_info() for name, process in processes.items()}
        yield Sample(
            seconds,
            {name: info.rss / 2**20 for name, info in memory.items()},
            {name: (info.rss - info.shared) / 2**20 for name, info in memory.items()},
            float(insert_ms),
            float(sample_ms),
            state["environment_steps"],
            state["learner_steps"],
        )
        time.sleep(max(0.0, PERIOD - (time.monotonic() - began - seconds)))
    for canary in canaries:
        canary.close()


def slope(seconds: Sequence[float], values: Sequence[float]) -> float:
    """Median of the slopes between all pairs of samples (Theil-Sen), in percent of the median an hour.

    A least-squares line follows what is there for a moment, as a checkpoint that is being written.
    """
    return float(theilslopes(values, np.asarray(seconds) / 3600).slope / np.median(values) * 100)


def report(samples: Sequence[Sample]) -> str:
    """A table for a person, of what came after the warm-up."""
    warm = min(WARM_UP, samples[-1].seconds / 3)
    counted = [sample for sample in samples if sample.seconds >= warm]
    seconds = [sample.seconds for sample in counted]
    lines = [f"{'role':<14}{'RSS after warm-up':>18}{'at the end':>12}{'slope':>14}{'of what is its own':>22}"]
    for name in counted[0].rss:
        values = [sample.rss[name] for sample in counted]
        line = f"{name:<14}{values[0]:>14.1f} MiB{values[-1]:>8.1f} MiB{slope(seconds, values):>9.2f} %/h"
        lines.append(f"{line}{slope(seconds, [sample.own[name] for sample in counted]):>17.2f} %/h")
    thirds = np.array_split(np.asarray([[sample.insert_ms, sample.sample_ms] for sample in counted]), 3)
    for index, what in enumerate(("insert", "sample")):
        medians = ", ".join(f"{np.median(third[:, index]):.2f}" for third in thirds)
        lines.append(f"{what} of a canary, ms, median of each third: {medians}")
    last = samples[-1]
    lines.append(f"{last.environment_steps:,} environment steps and {last.learner_steps:,} learner steps")
    return "\n".join(lines)


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Memory over time, each role beside where it was after the warm-up."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (memory, latency) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained")
    minutes = [sample.seconds / 60 for sample in samples]
    for name in samples[0].rss:
        memory.plot(minutes, [sample.rss[name] for sample in samples], label=name)
    memory.set_ylabel("RSS, MiB")
    memory.set_ylim(bottom=0)
    memory.legend(ncols=3, fontsize="small")
    latency.plot(minutes, [sample.insert_ms for sample in samples], label="insert")
    latency.plot(minutes, [sample.sample_ms for sample in samples], label="sample")
    latency.set_ylabel("a canary, ms")
    latency.set_xlabel("minutes")
    latency.set_yscale("log")
    latency.legend()
    figure.savefig(path, dpi=110)


def write(samples: Sequence[Sample], path: Path) -> None:
    """One line a sample."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [f"{kind}_mib_{name}" for kind in ("rss", "own") for name in samples[0].rss]
        writer.writerow(["seconds", *names, *Sample._fields[3:]])
        for sample in samples:
            row = (sample.seconds, *sample.rss.values(), *sample.own.values(), *sample[3:])
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])


def main(argv: Sequence[str]) -> None:
    """Runs, watches, and says."""
    overrides = ["run.target_return=inf", *flags.FLAGS.set, *argv[1:]]
    output = Path(flags.FLAGS.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    samples: list[Sample] = []
    with program(flags.FLAGS.config, overrides) as running:
        for sample in watch(running, flags.FLAGS.minutes):
            samples.append(sample)
            write(samples, output.with_suffix(".csv"))
            if len(samples) % 30 == 0:
                print(f"after {sample.seconds / 60:.0f} minutes\n{report(samples)}", flush=True)
    draw(samples, output.with_suffix(".png"))
    print(report(samples))


if __name__ == "__main__":
    flags.DEFINE_string("config", "apex_cartpole", "The preset to run.")
    flags.DEFINE_multi_string("set", [], "A field and its value.")
    flags.DEFINE_float("minutes", 60.0, "How long.")
    flags.DEFINE_string("output", "docs/results/soak", "Where the CSV and the PNG go.")
    app.run(main)
