"""Learning curves of presets over several seeds, through the real program, kept as CSV and PNG in docs/results.

Each run's own folder stays in runs/learning: `python -m launch.status` says meanwhile how it stands.

python -m benchmarks.learning --config=apex_cartpole --seeds=3
python -m benchmarks.learning --config=impala_pong --seeds=1 --set run.seconds=2400
"""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from absl import app, flags

RESULTS = Path("docs/results")
RUNS = Path("runs/learning")
COLUMNS = ("seed", "seconds", "environment_steps", "learner_steps", "training_return", "evaluation")
MOST_ROWS = 300  # of one seed in the CSV
LAST_WORDS = 4_000  # characters of a failed run's output


class Run(NamedTuple):
    """One seed's run."""

    seed: int
    rows: list[dict[str, float | None]]  # by COLUMNS
    reason: str  # why it ended


def run_seed(config: str, seed: int, overrides: Sequence[str]) -> Run:
    """Runs a preset to its end and reads its metrics.

    Raises:
        RuntimeError: it ended otherwise; says where its folder is, and how its output ends.
    """
    parent = RUNS / f"{config.replace('/', '_')}-{seed}"
    print(f"{config} seed {seed}: python -m launch.status {parent}/latest", flush=True)
    settings = [*overrides, f"run.directory={parent}", f"run.seed={seed}"]
    command = [sys.executable, "-m", "launch.local", f"--config={config}", "--set", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            output, _ = running.communicate()
        except KeyboardInterrupt:  # Ctrl-C reaches it, too: it ends its roles and saves
            output, _ = running.communicate()
    if running.returncode:
        raise RuntimeError(f"{parent}/latest ended with exit code {running.returncode}:\n{output[-LAST_WORDS:]}")
    directory = parent / "latest"
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    reason = str(json.loads((directory / "status.json").read_text())["reason"])
    return Run(seed, [_row(seed, line) for line in lines], reason)


def _row(seed: int, line: dict[str, float | None]) -> dict[str, float | None]:
    evaluations: list[float] = [entry["mean"] for entry in line["evaluations"]]  # type: ignore[union-attr]
    return {
        "seed": seed,
        "seconds": round(line["elapsed"] or 0.0, 1),
        "environment_steps": line["environment_steps"],
        "learner_steps": line["learner_steps"],
        "training_return": line["training_return"],
        "evaluation": evaluations[-1] if evaluations else None,
    }


def write_csv(path: Path, runs: Sequence[Run]) -> None:
    """All seeds, thinned evenly; rows with an evaluation stay."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for run in runs:
            every = max(1, len(run.rows) // MOST_ROWS)
            writer.writerows(row for n, row in enumerate(run.rows) if n % every == 0 or row["evaluation"] is not None)


def draw(path: Path, title: str, runs: Sequence[Run], control: Run | None) -> None:
    """Returns against environment steps, a line for each seed, the control dashed."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    for number, run in enumerate(runs):
        colour = f"C{number}"
        steps, returns = _series(run, "training_return")
        axes.plot(steps, returns, color=colour, label=f"seed {run.seed}, actors (they explore)")
        steps, returns = _series(run, "evaluation")
        axes.plot(steps, returns, color=colour, linestyle="none", marker="o", markersize=3, label="greedy policy")
    if control is not None:
        steps, returns = _series(control, "training_return")
        axes.plot(steps, returns, color="grey", linestyle="--", label="control: learning rate 0")
    axes.set(xlabel="environment steps", ylabel="return", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _series(run: Run, column: str) -> tuple[list[float], list[float]]:
    rows = [row for row in run.rows if row[column] is not None]
    return [row["environment_steps"] or 0.0 for row in rows], [row[column] or 0.0 for row in rows]


def main(argv: Sequence[str]) -> None:
    config, overrides = flags.FLAGS.config, [*flags.FLAGS.set, *argv[1:]]
    runs = []
    for seed in range(flags.FLAGS.seeds):
        runs.append(run_seed(config, seed, overrides))
        print(f"{config} seed {seed}: {runs[-1].reason} after {runs[-1].rows[-1]['seconds']} s", flush=True)
    control = None
    if flags.FLAGS.control_seconds:
        still = [*overrides, "agent_config.learning_rate=0", f"run.seconds={flags.FLAGS.control_seconds}"]
        control = run_seed(config, 0, still)
        print(f"{config} control: {control.rows[-1]['training_return']}", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_csv(RESULTS / f"{config}.csv", runs)
    draw(RESULTS / f"{config}.png", config, runs, control)


if __name__ == "__main__":
    flags.DEFINE_string("config", "apex_cartpole", "The preset.")
    flags.DEFINE_multi_string("set", [], "Overrides, as for launch.local.")
    flags.DEFINE_integer("seeds", 3, "Runs, with run.seed=0, 1, ...")
    flags.DEFINE_float("control_seconds", 30.0, "How long a control with learning rate 0 runs; 0: none.")
    flags.FLAGS.set_gnu_getopt(True)
    app.run(main)
