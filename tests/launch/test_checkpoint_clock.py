"""When roles save: together, and when asked."""

import time
from pathlib import Path

import pytest

from launch.checkpoint_clock import CheckpointClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, which tests set."""
    clock = [1000.0]
    for name in ("time", "monotonic"):
        monkeypatch.setattr(f"launch.checkpoint_clock.time.{name}", lambda: clock[0])
    return clock


def test_roles_that_started_apart_save_together(tmp_path: Path, now: list[float]) -> None:
    clocks = [CheckpointClock(tmp_path / "request", 60.0)]
    now[0] = 1015.0
    clocks.append(CheckpointClock(tmp_path / "request", 60.0))
    for moment, due in ((1019.0, False), (1020.0, True), (1021.0, True)):
        now[0] = moment
        assert [clock.due for clock in clocks] == [due, due]
    for clock in clocks:
        clock.taken(0.1)
    for moment, due in ((1079.0, False), (1080.0, True)):
        now[0] = moment
        assert [clock.due for clock in clocks] == [due, due]


def test_one_that_takes_long_comes_less_often(tmp_path: Path, now: list[float]) -> None:
    clock = CheckpointClock(tmp_path / "request", 60.0)
    now[0] = 1025.0
    clock.taken(5.0)  # 5 % of 100 s
    now[0] = 1139.0
    early = clock.due
    now[0] = 1140.0
    assert (early, clock.due) == (False, True)


def test_a_request_is_heard_once(tmp_path: Path, now: list[float]) -> None:
    request = tmp_path / "request"
    request.touch()  # of an earlier run
    clock = CheckpointClock(request, 0.0)
    now[0] += 10_000.0
    found = [clock.due]
    time.sleep(0.01)  # of the real clock, that the file system goes by
    request.touch()
    now[0] += 1.0
    found.append(clock.due)
    clock.taken(0.1)
    now[0] += 1.0
    found.append(clock.due)
    assert found == [False, True, False]
