"""A program that runs beside this process, and doesn't outlive it.

python -m launch.background PID --config=...    is launch.local, ended when that process ends
"""

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launch import command_line
from launch.processes import die_with
from launch.run_directory import LATEST, RunDirectory

END_DEADLINE = 30.0  # seconds from Ctrl-C to the end
OUTPUT = "output.txt"  # what the program says, in the folder that it was given


class Background(NamedTuple):
    """A program, and where its files are."""

    process: "subprocess.Popen[bytes]"
    run: RunDirectory


@contextlib.contextmanager
def started(
    config: str | None, overrides: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Background]:
    """Starts an experiment, and ends it where it still runs, as Ctrl-C does.

    Args:
        config: the preset.
        overrides: as for --set; run.directory is `folder` unless one of them says something else.
        folder: gets the program's output, and its files.
        environment: further environment variables.

    Raises:
        ValueError: the experiment can't be; the message names the field.
        RuntimeError: it ended before it had a folder; the message holds what it said.
    """
    settings = [f"run.directory={folder}", *overrides]  # of two for one field the last wins
    experiment = command_line.experiment_of(config, settings)
    newest = Path(experiment.run.directory) / LATEST
    earlier = newest.resolve()
    with (folder / OUTPUT).open("wb") as output:
        # Of this process's session: what is sent to the terminal reaches both. No code between fork and exec: this
        # process may have threads.
        process = subprocess.Popen(
            [sys.executable, "-m", "launch.background", str(os.getpid()), f"--config={config}", "--set", *settings],
            stdout=output, stderr=output, env={**os.environ, **(environment or {})},
        )  # fmt: skip
    try:
        while not newest.exists() or newest.resolve() == earlier:
            if process.poll() is not None:
                raise RuntimeError(f"The program ended before it began:\n{said(folder)}")
            time.sleep(0.1)
        yield Background(process, RunDirectory(newest.resolve()))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=END_DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def said(folder: Path) -> str:
    """The end of what the program has said so far."""
    return (folder / OUTPUT).read_text(errors="replace")[-6000:]


if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)), signal.SIGTERM)
    runpy.run_module("launch.local", run_name="__main__", alter_sys=True)
