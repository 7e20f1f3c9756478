"""The files of a run, on a disk that takes nothing for a while."""

import json
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launch.event_file import EventFile, set_aside_events
from launch.run_directory import RunDirectory
from launch.run_files import RunFiles, read_rows
from launch.run_state import Evaluation, RunState, RunStatus, read_status
from tests.launch.full_disk import file_size_limit


def status_at(second: int) -> RunStatus:
    state = RunState(elapsed=second, environment_steps=10 * second, learner_steps=second, training_return=second)
    return RunStatus(preset="proof", started=0.0, time=float(second), state=state)


def test_a_run_goes_on_over_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory(tmp_path / "run")
    files = RunFiles(run)
    files.write(status_at(1), [1.0], [])
    with file_size_limit(run.metrics.stat().st_size + 100):  # part of a line still fits
        for second in (2, 3, 4):
            files.write(status_at(second), [1.0], [])
    assert caplog.text.count("run.directory") == 1  # not every second
    evaluation = Evaluation(elapsed=5, environment_steps=50, learner_steps=5, version=4, mean=7.0, episodes=2)
    files.write(status_at(5), [1.0], [evaluation])
    files.close()

    assert [row["elapsed"] for row in read_rows(run.metrics)] == [1, 5]
    status = read_status(run.status)
    assert status is not None
    assert status.state.environment_steps == 50
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("by_environment_steps/return/evaluation")] == [(50, 7.0)]
    assert (5, 5.0) in [(e.step, e.value) for e in events.Scalars("by_learner_steps/return/training")]


def test_event_files_of_one_second_are_told_apart(tmp_path: Path) -> None:
    for step in range(3):
        file = EventFile(tmp_path)
        file.write(1.0, [(step, {"a": float(step)})])
        file.close()
    assert len(list(tmp_path.iterdir())) == 3
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert len(events.Scalars("a")) == 3


def test_events_after_a_moment_are_set_aside(tmp_path: Path) -> None:
    folder, aside, now = tmp_path / "tensorboard", tmp_path / "aside", time.time()
    for first in (1, 4):  # the second file is of a monitor that was started again
        file = EventFile(folder)
        for step in range(first, first + 3):
            file.write(now + step, [(step, {"a": float(step)})])
        file.close()
    with sorted(folder.iterdir())[0].open("ab") as torn:
        torn.write(b"half a record")

    def steps(path: Path) -> list[int]:
        events = EventAccumulator(str(path))
        events.Reload()
        return [event.step for event in events.Scalars("a")]

    set_aside_events(folder, now + 4.5, aside)
    assert steps(folder) == [1, 2, 3, 4]
    assert sorted(steps(aside)) == [1, 2, 3, 4, 5, 6]
    set_aside_events(folder, now + 2.5, aside)
    assert steps(folder) == [1, 2]
    assert sorted(steps(aside)) == [1, 2, 3, 4, 5, 6]
    before = [path.read_bytes() for path in folder.iterdir()]
    set_aside_events(folder, now + 2.5, aside)
    assert [path.read_bytes() for path in folder.iterdir()] == before


def test_a_line_is_strict_json(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    files = RunFiles(run)
    state = RunState(learner_metrics={"loss/a": float("nan"), "loss/b": 1.0})
    files.write(RunStatus(preset="proof", started=0.0, time=1.0, state=state), [], [])
    files.close()

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    (line,) = run.metrics.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["learner"] == {"loss/a": None, "loss/b": 1.0}
    with pytest.raises(ValueError, match="NaN"):
        json.loads(json.dumps(float("nan")), parse_constant=refuse)  # control
