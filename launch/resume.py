"""Goes on with a run that ended or was killed: its folder, its experiment, its newest whole checkpoint, its curve."""

import contextlib
import dataclasses
import fcntl
import json
import math
import time
from collections.abc import Iterator, Sequence

from configs import serialization
from configs.experiment import Experiment
from configs.fields import list_fields
from configs.overrides import apply_overrides
from launch.run_checkpoints import RunCheckpoints, RunManifest
from launch.run_directory import RunDirectory, write_atomically

# What the tables' items were made with: the tables can begin empty instead, with --resume_migrate.
MIGRATED = ("agent_config.replay", "topology.shards")
# What checkpoints were made with, and what the counters count. All else may change.
FIXED = ("agent", "environment.name", "environment.library", "environment.options", *MIGRATED)
LOCK = ".lock"
SET_ASIDE = "metrics_set_aside.jsonl"  # lines of what was done after the checkpoint that the run went back to
EVENTS_SET_ASIDE = "tensorboard_set_aside"  # event files as they were, outside the folder that TensorBoard is given


def resumed_experiments(
    run: RunDirectory, overrides: Sequence[str], *, migrate: bool = False
) -> tuple[Experiment, Experiment]:
    """The experiment of a run's folder, and the same with changes.

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
    for path, was, would_be in differences(before, after):
        if _is_below(path, FIXED) and not (migrate and _is_below(path, MIGRATED)):
            way_out = ", or add --resume_migrate to go on with empty tables" if _is_below(path, MIGRATED) else ""
            raise ValueError(
                f"--resume={run.path}: {path} was {was} and would be {would_be}, which the checkpoints of this run "
                f"don't fit. Leave it as it was, or start a new run{way_out}."
            )
    return before, dataclasses.replace(after, run=dataclasses.replace(after.run, directory=before.run.directory))


def differences(before: Experiment, after: Experiment) -> Iterator[tuple[str, str, str]]:
    """Of each field that differs its path and both values."""
    then, now = ({field.path: field.value for field in list_fields(each)} for each in (before, after))
    for path in sorted({*then, *now}):
        if then.get(path) != now.get(path):
            yield path, repr(then.get(path)), repr(now.get(path))


def _is_below(path: str, fields: Sequence[str]) -> bool:
    return any(path == field or path.startswith(f"{field}.") for field in fields)


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


def go_back(run: RunDirectory, before: Experiment, after: Experiment) -> Iterator[str]:
    """Takes a run's folder back to its newest whole checkpoint. What is newer is set aside, not deleted.

    Yields, in lines for a person, what it goes on from, what was skipped and why, and what becomes of the tables.
    """
    checkpoints, chosen = RunCheckpoints(run, before), None
    for manifest in checkpoints.newest_first():
        wrong = checkpoints.damage_of(manifest)
        if not wrong:
            chosen = manifest
            break
        yield f"Skipped the checkpoint of {manifest.describe()}: {wrong}."
    if chosen is None:
        yield (
            "No checkpoint of the whole run can be used: each role goes on from the newest good one of its own, and "
            "begins anew where it has none."
        )
        return
    yield f"Going on from {chosen.describe()}."
    migrated = [each for each in differences(before, after) if _is_below(each[0], MIGRATED)]
    for path, was, is_now in migrated:
        yield f"MIGRATED: {path} was {was} and is {is_now}; no checkpoint of the tables fits that, so they begin empty."
    goal = checkpoints.set_aside(chosen, shards_too=bool(migrated))
    rows, since = _cut_metrics(run, chosen)
    if rows:
        from launch.event_file import set_aside_events  # loads TensorBoard's protocol, which other starts don't need

        set_aside_events(run.tensorboard, since, run.path / EVENTS_SET_ASIDE)
    if goal or rows:
        yield f"Set aside: {rows} lines of metrics.jsonl" + (f", and checkpoints into {goal}" if goal else "") + "."
    if chosen.status is not None:
        # The monitor looked after the learner had saved: what the learner did in between is gone.
        state = {**chosen.status["state"], "learner_steps": chosen.learner.step}
        write_atomically(run.status, json.dumps({**chosen.status, "state": state}))


def _cut_metrics(run: RunDirectory, manifest: RunManifest) -> tuple[int, float]:
    """Moves the lines of what was done after a checkpoint into a file of their own. How many there are, and when the
    first was written, in seconds since the epoch.

    They are the last ones: a learner that fell back earlier in the run had done more steps then, and that is history.
    """
    if not run.metrics.exists() or manifest.status is None:
        return 0, math.inf
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    times, steps = ([_number_in(line, name) for line in lines] for name in ("time", "learner_steps"))
    before = [
        time <= manifest.status["time"] and step <= manifest.learner.step
        for time, step in zip(times, steps, strict=True)
    ]
    kept = max((count for count, is_before in enumerate(before, 1) if is_before), default=0)
    if kept < len(lines):
        with (run.path / SET_ASIDE).open("ab") as file:
            file.writelines(lines[kept:])
        write_atomically(run.metrics, b"".join(lines[:kept]))
    return len(lines) - kept, min(filter(math.isfinite, times[kept:]), default=math.inf)


def _number_in(line: bytes, name: str) -> float:
    try:
        return float(json.loads(line)[name])
    except (ValueError, KeyError, TypeError):  # half a line, of a monitor that was killed
        return math.nan


def reopen(run: RunDirectory, experiment: Experiment) -> None:
    """Makes the folder one of a run that goes on: the time in between doesn't count."""
    write_atomically(run.config, serialization.to_json(experiment))
    if run.status.exists():
        status, now = json.loads(run.status.read_text()), time.time()
        status |= {"started": status["started"] + now - status["time"], "time": now, "ended": False, "reason": ""}
        write_atomically(run.status, json.dumps(status))
