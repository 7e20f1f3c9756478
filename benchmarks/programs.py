"""Runs the whole program for a measurement, and reads what it left."""

import contextlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launch.background import started
from launch.faults import log_time


class Running(NamedTuple):
    """A program that runs."""

    process: "subprocess.Popen[bytes]"
    began: float  # time.time() at the command
    directory: Path  # of the run

    def log(self, role: str) -> str:
        """What a role has logged so far, e.g. of "learner-0"."""
        path = self.directory / "logs" / f"{role}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, role: str, words: str, seconds: float = 120.0) -> float:
        """Seconds from the command to the first log line of a role that holds `words`."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            for line in self.log(role).splitlines():
                if words in line and (moment := log_time(line)) is not None:
                    return moment - self.began
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{role} did not say {words!r} within {seconds} s; its log: {self.directory / 'logs'}")

    def status(self) -> dict[str, Any]:
        """The newest status; {} before the first."""
        with contextlib.suppress(OSError, ValueError):
            content: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
            return content
        return {}

    def pids(self) -> dict[str, int]:
        """Role name -> pid."""
        found = {}
        for path in sorted((self.directory / "logs").glob("*-*.log")):
            match = re.search(r"starts as process (\d+)", path.read_text(errors="replace"))
            if match:
                found[path.stem] = int(match[1])
        return found


class Rates(NamedTuple):
    """What a program did in a second."""

    environment_steps: float
    learner_steps: float


def rates_of(config: str, overrides: Sequence[str], seconds: float, settle: float = 20.0) -> Rates:
    """Of the real program, after its first learner step and a time to settle."""
    with program(config, [*overrides, "run.target_return=inf"]) as running:
        running.wait_for("learner-0", "First learner step done")
        time.sleep(settle)
        first = running.status()
        time.sleep(seconds)
        last = running.status()
        passed = last["time"] - first["time"]
        return Rates(*((last["state"][name] - first["state"][name]) / passed for name in Rates._fields))


@contextlib.contextmanager
def program(config: str, overrides: Sequence[str]) -> Iterator[Running]:
    """Launches a preset as a person would, and ends it as Ctrl-C does."""
    with tempfile.TemporaryDirectory() as parent:
        began = time.time()
        with started(config, overrides, Path(parent)) as background:
            yield Running(background.process, began, background.run.path)
