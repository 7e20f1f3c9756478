"""Runs the real program as a person would: its command, in a process of its own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
    wait_for_state(status, process, lambda state: state["learner_steps"] > 20)


def wait_for_state(
    status: Path, process: "subprocess.Popen[bytes]", reached: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Until the state in a run's status is as wanted; gives it back. Fails if the launcher ends before."""
    deadline = time.monotonic() + 180
    state: dict[str, Any] = {}
    while time.monotonic() < deadline:
        assert process.poll() is None, state
        with contextlib.suppress(OSError, ValueError):
            state = json.loads(status.read_text())["state"]
            if reached(state):
                return state
        time.sleep(0.3)
    raise TimeoutError(f"after 180 s the run's state was still {state}")


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


@contextlib.contextmanager
def learning(tmp_path: Path, config: str, *overrides: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A program that has begun to learn, and its run's folder; what it says goes to output.txt."""
    with open(tmp_path / "output.txt", "w+") as output:
        process = subprocess.Popen(
            command_line(config, tmp_path / "runs", *overrides),
            cwd=REPOSITORY, env=environment(), stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_for_learning(tmp_path / "runs" / "latest" / "status.json", process)
            yield process, tmp_path / "runs" / "latest"
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            output.seek(0)
            print(output.read())
