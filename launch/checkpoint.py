"""Has a run take a checkpoint now: `python -m launch.checkpoint RUN`, with RUN a run's folder, e.g. runs/latest."""

import sys
import time

from absl import app

from configs import serialization
from launch import resume
from launch.command_line import run_of
from launch.run_checkpoints import RunCheckpoints
from launch.run_directory import LATEST, RunDirectory

PATIENCE = 10.0  # seconds between two words on what is waited for
LONGEST = 600.0  # seconds


def main(arguments: list[str]) -> int:
    """Asks all roles, waits, and says what was saved. Exit code 0, or 1 where nothing was."""
    run = run_of(arguments, "launch.checkpoint")
    if not run.config.exists():
        print(f"{run.path} is no run's folder: it has no {run.config.name}. Name one such as runs/{LATEST}.",
              file=sys.stderr)  # fmt: skip
        return 1
    try:
        with resume.claimed(run):
            print(f"{run.path} isn't running: what was saved last is what there is.", file=sys.stderr)
            return 1
    except ValueError:
        pass  # it runs, as it should
    return take(run)


def take(run: RunDirectory) -> int:
    """Asks, and waits until everybody has saved."""
    checkpoints = RunCheckpoints(run, serialization.from_json(run.config.read_text()))
    run.request.touch()
    asked = run.request.stat().st_mtime
    began = said = time.monotonic()
    while time.monotonic() - began < LONGEST:
        newest = next(checkpoints.newest_first(), None)
        if newest is not None and min(newest.times) >= asked:
            print(f"Saved {newest.describe()}.")
            return 0
        if time.monotonic() - said >= PATIENCE:
            said = time.monotonic()
            print(
                f"Waiting for {time.monotonic() - began:.0f} s until the learner and all shards have saved.", flush=True
            )
        time.sleep(0.2)
    print(f"Not everybody has saved within {LONGEST:.0f} s: see {run.logs}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    app.run(main)
