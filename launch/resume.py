"""Goes on with a run that ended or was killed: its folder, its experiment, its checkpoints, its curve."""

import contextlib
import dataclasses
import fcntl
import json
import time
from collections.abc import Iterator, Sequence

from configs import serialization
from configs.experiment import Experiment
from configs.fields import list_fields
from configs.overrides import apply_overrides
from launch.run_directory import RunDirectory, write_atomically

# What checkpoints were made with: the tables' items, and what the counters count. All else may change.
FIXED = (
    "agent",
    "agent_config.replay",
    "environment.name",
    "environment.library",
    "environment.options",
    "topology.shards",
)
LOCK = ".lock"


def resumed_experiment(run: RunDirectory, overrides: Sequence[str]) -> Experiment:
    """The experiment of a run's folder, with changes.

    Raises:
        ValueError: no such run, or a change that its checkpoints don't fit; both values are named.
    """
    try:
        before = serialization.from_json(run.config.read_text())
    except FileNotFoundError as error:
        raise ValueError(
            f"--resume={run.path} is no run's folder: it has no {run.config.name}. Name one such as runs/latest."
        ) from error
    after = apply_overrides(before, overrides)
    then, now = ({field.path: field.value for field in list_fields(each)} for each in (before, after))
    for path in sorted({*then, *now}):
        if then.get(path) != now.get(path) and any(path == fixed or path.startswith(f"{fixed}.") for fixed in FIXED):
            raise ValueError(
                f"--resume={run.path}: {path} was {then.get(path)!r} and would be {now.get(path)!r}, which the "
                "checkpoints of this run don't fit. Leave it as it was, or start a new run."
            )
    return dataclasses.replace(after, run=dataclasses.replace(after.run, directory=before.run.directory))


@contextlib.contextmanager
def claimed(run: RunDirectory) -> Iterator[None]:
    """Keeps a second launcher out of the folder while this one is in it; the kernel lets go when the process ends.

    Raises:
        ValueError: another one is in it.
    """
    with (run.path / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{run.path} belongs to a program that still runs. Stop that one first.") from None
        yield


def reopen(run: RunDirectory, experiment: Experiment) -> None:
    """Makes the folder one of a run that goes on: the time in between doesn't count."""
    write_atomically(run.config, serialization.to_json(experiment))
    if run.status.exists():
        status, now = json.loads(run.status.read_text()), time.time()
        status |= {"started": status["started"] + now - status["time"], "time": now, "ended": False, "reason": ""}
        write_atomically(run.status, json.dumps(status))
