"""Faults for a running program, and what its logs and status say of how it got over them."""

import contextlib
import datetime
import os
import random
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from launch import learner_manifests
from launch.chaos_signal import DELAY_SECONDS, DELAY_SIGNAL, RAISE_SIGNAL
from launch.run_directory import RunDirectory
from launch.run_state import RunStatus, read_status
from replay import shard_manifests

PAUSE_SECONDS = 3.0  # that a paused role stands still, and a disk is busy
# What a role's log says, by kind, when it does its work again after a start.
WORKING = {
    "replay": "Serving replay-",
    "actor": "Acting with the weights of learner step",
    "accelerated_actor": "Acting with the weights of learner step",
    "learner": "First learner step done",
    "evaluator": "Evaluating the weights of learner step",
    "monitor": "Watching",
}


class Fault(NamedTuple):
    """One kind of trouble."""

    what: str  # in words, for a person
    inject: Callable[["Program", str], None]  # does it to a role
    ends_process: bool  # whether the role's process ends by it, and another is expected
    kinds: tuple[str, ...] = tuple(WORKING)  # of roles that it can happen to


class Program:
    """A running program, from outside: what it writes, and its processes."""

    def __init__(self, run: RunDirectory, seed: int) -> None:
        self.run, self.random = run, random.Random(seed)

    def status(self) -> RunStatus | None:
        """The newest; None before the first, or while it can't be read."""
        with contextlib.suppress(OSError, ValueError):
            return read_status(self.run.status)
        return None

    def roles(self) -> list[str]:
        """Names of those that stay, e.g. "actor-0"."""
        names = (path.stem for path in sorted(self.run.logs.glob("*-*.log")))
        return [name for name in names if name.rpartition("-")[0] in WORKING]

    def pid(self, name: str) -> int:
        """Of a role's newest process; 0 before its first."""
        found = re.findall(rf"{name} starts as process (\d+)\.", self._log(name))
        return int(found[-1]) if found else 0

    def address(self, shard: str) -> str:
        """Where a shard's newest process serves, "host:port"; "" before it does."""
        found = re.findall(rf"Serving {shard} at (\S+)\.", self._log(shard))
        return str(found[-1]) if found else ""

    def working_since(self, name: str, after: float) -> float | None:
        """When a role that was started after a time began to work, both in seconds since the epoch; None: not yet."""
        started = None
        for line in self._log(name).splitlines():
            moment = log_time(line)
            if moment is None or moment < after:
                continue
            if f"{name} starts as process" in line:
                started = moment
            elif started is not None and WORKING[name.rpartition("-")[0]] in line:
                return moment
        return None

    def restored_step(self) -> int:
        """The learner step that the learner began with last; 0: none."""
        log = self._log("learner-0").rsplit("starts as process", 1)[-1]
        found = re.findall(r"Restored the learner at step (\d+)", log)
        return int(found[-1]) if found else 0

    def checkpoint_file(self, name: str) -> Path | None:
        """The largest file of a role's newest checkpoint."""
        root = self.run.checkpoints / name.replace("learner-0", "learner")
        if name.startswith("replay"):
            numbers = shard_manifests.numbers_in(root)
            folder = shard_manifests.folder_of(root, numbers[-1]) / "data" if numbers else root
        else:
            steps = learner_manifests.steps_in(root)
            folder = learner_manifests.folder_of(root, steps[-1]) if steps else root
        files = [path for path in folder.rglob("*") if path.is_file()] if folder != root else []
        return max(files, key=_size) if files else None

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends one to a role's newest process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(name), number)

    def _log(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return self.run.log(name).read_text(errors="replace")
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size


def log_time(line: str) -> float | None:
    """The time of a log line, e.g. "I1201 01:28:36.469759 ...", in seconds since the epoch; None where it has none."""
    match = re.match(r"[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d+)", line)
    if match is None:
        return None
    text = f"{datetime.datetime.now().year}-{match[1]}-{match[2]} {match[3]}"
    return datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f").timestamp()


def _pause(program: Program, name: str) -> None:
    pid = program.pid(name)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS)
    os.kill(pid, signal.SIGCONT)


def _damage(program: Program, name: str) -> None:
    path = program.checkpoint_file(name)
    if path is not None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        fresh = path.with_name("damaged")  # a hard link elsewhere to the file must stay as it is
        fresh.write_bytes(data)
        fresh.replace(path)
    program.signal(name, signal.SIGKILL)


def _delay(program: Program, name: str) -> None:
    program.signal(name, DELAY_SIGNAL)
    time.sleep(DELAY_SECONDS)


def _load_disk(program: Program, name: str) -> None:
    """Writes to the run's disk, and waits for it, again and again."""
    del name  # all are struck
    path, block = program.run.path / ".load", os.urandom(1 << 24)
    end = time.monotonic() + PAUSE_SECONDS
    try:
        with path.open("wb") as file:
            while time.monotonic() < end:
                file.seek(0)
                file.write(block)
                os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)


FAULTS: Mapping[str, Fault] = {
    "kill": Fault("SIGKILL", lambda program, name: program.signal(name, signal.SIGKILL), True),
    "restart": Fault("SIGTERM from elsewhere", lambda program, name: program.signal(name, signal.SIGTERM), True),
    "raise": Fault("an exception in its main thread", lambda program, name: program.signal(name, RAISE_SIGNAL), True),
    "stop": Fault("SIGSTOP for good", lambda program, name: program.signal(name, signal.SIGSTOP), True),
    "pause": Fault(f"SIGSTOP, and SIGCONT {PAUSE_SECONDS:g} s later", _pause, False),
    "damage": Fault("a flipped bit in its newest checkpoint, then SIGKILL", _damage, True, ("replay", "learner")),
    "delay": Fault(f"publishes no weights for {DELAY_SECONDS:g} s", _delay, False, ("learner",)),
    "disk": Fault(f"a disk kept busy for {PAUSE_SECONDS:g} s", _load_disk, False, ("monitor",)),
}
