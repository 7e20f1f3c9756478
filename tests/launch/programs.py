"""Runs the real program as a person would: its command, in a process of its own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]


class Finished(NamedTuple):
    """What a person is left with."""

    code: int
    output: str
    directory: Path  # of the run

    @property
    def status(self) -> dict[str, Any]:
        """The run's last status."""
        content: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
        return content


def command_line(config: str, directory: Path, *overrides: str, extra: tuple[str, ...] = ()) -> list[str]:
    """The command that launches a preset into a directory."""
    return [
        sys.executable,
        "-m",
        "launch.local",
        f"--config={config}",
        *extra,
        "--set",
        f"run.directory={directory}",
        *overrides,
    ]


def environment() -> dict[str, str]:
    """A person's environment: without the devices that the tests' own process was given."""
    return {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}


def wait_for_learning(status: Path, process: "subprocess.Popen[bytes]") -> None:
    """Until a launcher's program has done some learner steps."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None
        with contextlib.suppress(OSError, ValueError):
            if json.loads(status.read_text())["state"]["learner_steps"] > 20:
                return
        time.sleep(0.3)
    raise TimeoutError("nothing was learned within 180 s")


def run_program(config: str, directory: Path, *overrides: str, timeout: float) -> Finished:
    """Runs to the end. Fails the test, with all that was printed, if that takes longer than `timeout` seconds."""
    return _finish(command_line(config, directory, *overrides), directory / "latest", timeout)


def resume_program(run: Path, *overrides: str, timeout: float) -> Finished:
    """Goes on with a run, to its end."""
    command = [sys.executable, "-m", "launch.local", f"--resume={run}", "--set", *overrides]
    return _finish(command, run, timeout)


def _finish(command: list[str], run: Path, timeout: float) -> Finished:
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Finished(done.returncode, done.stdout, run.resolve())
