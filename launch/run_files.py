"""What the monitor writes into a run's folder: metrics.jsonl, TensorBoard's events, status.json and curve.png."""

import dataclasses
import gc
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging
from matplotlib.figure import Figure

from launch.curve import Curve, draw_curve, make_figure
from launch.event_file import EventFile
from launch.memory import give_back_memory
from launch.run_directory import RunDirectory, to_json, write_atomically
from launch.run_state import Evaluation, RunState, RunStatus

COMPLAINT_PERIOD = 10.0  # seconds between two words on a disk that takes nothing
DRAWING_SHARE = 0.05  # of the time at most goes into drawing, on whatever machine


class RunFiles:
    """Appends to a run's files. A disk that fails is complained about and doesn't end the run: the lines of that time
    are missing, and the totals, which are kept in memory, are right again once there is space.
    """

    def __init__(self, directory: RunDirectory) -> None:
        """Opens the files; appends where they exist.

        Raises:
            OSError: they can't be written; the message names run.directory.
        """
        self._directory = directory
        self._complain_at = 0.0
        self._torn = False  # the last line may have been cut off
        try:
            directory.path.mkdir(parents=True, exist_ok=True)  # on a cluster nobody else makes it
            _end_last_line(directory.metrics)
            self._lines = directory.metrics.open("ab", buffering=0)  # what a buffer can't get rid of, it tries again
            self._events = EventFile(directory.tensorboard)
        except OSError as error:
            raise OSError(error.errno, _explain(directory.path, error)) from error

    def write(self, report: RunStatus, returns: Sequence[float], evaluations: Sequence[Evaluation]) -> dict[str, Any]:
        """Appends one second's numbers and replaces the status; gives back the line of metrics.jsonl."""
        row = row_of(report, returns, evaluations)
        for write in (
            lambda: self._write_line(row),
            lambda: write_atomically(self._directory.status, to_json(dataclasses.asdict(report))),
            lambda: self._events.write(report.time, scalars_of(report.state, returns, evaluations)),
        ):
            self._try(write)
        return row

    def close(self) -> None:
        """Flushes everything."""
        self._lines.close()
        self._try(self._events.close)

    def _write_line(self, row: Mapping[str, Any]) -> None:
        line = ("\n" if self._torn else "").encode() + to_json(row).encode() + b"\n"
        self._torn = True
        while line:
            line = line[self._lines.write(line) :]
        self._torn = False

    def _try(self, write: Callable[[], None]) -> None:
        """Does it, or says every 10 s at most why it can't be done."""
        try:
            write()
        except OSError as error:
            if time.monotonic() >= self._complain_at:
                self._complain_at = time.monotonic() + COMPLAINT_PERIOD
                logging.error("%s", _explain(self._directory.path, error))


def row_of(report: RunStatus, returns: Sequence[float], evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """One line of metrics.jsonl: totals and rates at one time, and what came since the line before."""
    state = report.state
    names = (
        "elapsed", "environment_steps", "environment_steps_per_second", "learner_steps", "learner_steps_per_second",
        "episodes", "training_return", "policy_lag", "weights_delay", "learner_waiting", "actors_waiting",
    )  # fmt: skip
    return {
        "time": report.time,
        **{name: getattr(state, name) for name in names},
        "new_episodes": len(returns),
        "new_return": sum(returns) / len(returns) if returns else None,
        "evaluations": [dataclasses.asdict(evaluation) for evaluation in evaluations],
        "shards": [dataclasses.asdict(shard) for shard in state.shards],
        "learner": state.learner_metrics,
        "counts": state.counts,
    }


def scalars_of(
    state: RunState, returns: Sequence[float], evaluations: Sequence[Evaluation]
) -> Iterator[tuple[int, dict[str, float]]]:
    """TensorBoard's values by tag, at each x. A tag's first part says what x is."""
    training = state.training_return if returns else None
    by_steps = {
        "return/training": training,
        "speed/environment_steps_per_second": state.environment_steps_per_second,
        "speed/learner_steps_per_second": state.learner_steps_per_second,
        "waiting/learner": state.learner_waiting,
        "waiting/actors": state.actors_waiting,
        **{f"replay_fill/shard_{shard.index}": shard.size / shard.max_size for shard in state.shards if shard.max_size},
    }
    yield state.environment_steps, _tags("by_environment_steps", by_steps)
    by_learner_steps = {
        "return/training": training,
        "policy_lag": state.policy_lag,
        "weights_delay": state.weights_delay,
    }
    by_learner_steps.update(state.learner_metrics)
    yield state.learner_steps, _tags("by_learner_steps", by_learner_steps)
    for evaluation in evaluations:
        mean = {"return/evaluation": evaluation.mean}
        yield evaluation.environment_steps, _tags("by_environment_steps", mean)
        yield evaluation.version, _tags("by_learner_steps", mean)


def _tags(prefix: str, values: Mapping[str, float | None]) -> dict[str, float]:
    """The values that are numbers, each under its tag."""
    return {f"{prefix}/{name}": value for name, value in values.items() if value is not None and math.isfinite(value)}


def read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a metrics.jsonl, without one that was cut off."""
    if not path.exists():
        return
    with path.open() as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "elapsed" in row:
                yield row


class CurveDrawer:
    """Draws curve.png in a thread of its own, one picture at a time: a picture takes longer than the monitor's loop
    should stand still.
    """

    def __init__(self, path: Path, target: float | None, period: float) -> None:
        """`period` in seconds; longer where drawing is slow."""
        self.curve = Curve()
        self._path, self._target, self._period = path, target, period
        self._figure = make_figure()
        self._next = time.monotonic() + period / 4  # an early first one, so that there is something to see
        self._thread: threading.Thread | None = None

    def draw_if_due(self, title: str) -> None:
        """Starts a picture if it is time to."""
        if time.monotonic() >= self._next and not (self._thread and self._thread.is_alive()):
            self._next = math.inf  # set when it is done
            self._thread = threading.Thread(
                target=self._draw, args=(self.curve.copy(), title, self._figure), name="curve"
            )
            self._thread.daemon = True
            self._thread.start()

    def draw_last(self, title: str) -> None:
        """Draws the final picture, here and now."""
        if self._thread:
            self._thread.join(timeout=10)
        self._draw(self.curve, title, make_figure())  # the thread may draw on the other one still

    def _draw(self, curve: Curve, title: str, figure: Figure) -> None:
        began = time.monotonic()
        try:
            draw_curve(curve, title, self._path, self._target, figure)
        except Exception as error:  # a run doesn't end for a picture
            logging.error("The learning curve could not be drawn: %s", error, exc_info=not isinstance(error, OSError))
        gc.collect()  # a figure is full of cycles
        give_back_memory()
        now = time.monotonic()
        self._next = now + max(self._period, (now - began) / DRAWING_SHARE)


def _end_last_line(path: Path) -> None:
    """A monitor that was killed may have left half a line."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _explain(path: Path, error: OSError) -> str:
    return (
        f"can't write into the run's folder {path}: {error}. Free some space or permit "
        "writing there, or set run.directory to another folder."
    )
