"""Shows a run, under way or over: `python -m launch.status RUN`, with RUN a run's folder, e.g. runs/latest."""

import sys
import time

from absl import app
from rich.console import Console

from launch.command_line import run_of
from launch.panels import make_view, summary_lines
from launch.run_directory import LATEST
from launch.run_state import read_status


def main(arguments: list[str]) -> int:
    """Prints the run's last status; exit code 0, or 1 where there is none."""
    run = run_of(arguments, "launch.status")
    try:
        report = read_status(run.status)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if report is None:
        print(
            f"No status in {run.path}: name a run's folder, e.g. `python -m launch.status runs/{LATEST}`. A run writes "
            "its status.json once its monitor is up.",
            file=sys.stderr,
        )
        return 1
    now = report.time if report.ended else time.time()
    console = Console()
    console.print(make_view(report, run.path, report.preset, {}, now, now, width=console.width, height=200))
    if report.ended:
        console.print()
        for line in summary_lines(report, run, report.preset):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    app.run(main)
