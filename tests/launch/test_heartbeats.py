"""Who is called silent, and who is not though he says nothing."""

import math

import pytest

from launch.heartbeats import START_SECONDS, Heartbeats, Living
from launch.run_state import RoleRecord, RunState, RunStatus, ShardStatus

NAMES = ("replay-0", "actor-0", "learner-0", "monitor-0")
LIMIT = 30.0


def stops_at(stops: str, name: str) -> float:
    return 101 if name == stops else math.inf


def watch(
    until: float, *, stops: str = "", deaf: tuple[float, float] = (0, 0), ended: bool = False, gap: float = 0.0
) -> dict[str, float]:
    """What is said in the end of a program that started at 0, in which one role stops at 100."""
    heartbeats, said, now = Heartbeats(LIMIT), dict.fromkeys(NAMES, 0.0), 0.0
    silent: dict[str, float] = {}
    while now < until:
        now += gap if gap and now == 110 else 1.0
        error = "no answer" if deaf[0] < now <= deaf[1] else ""
        for name in NAMES:
            monitored = name == "monitor-0" or (not error and stops_at(stops, "monitor-0") > now)
            if monitored and stops_at(stops, name) > now and now != 110 + gap:
                said[name] = now
        status = RunStatus(
            preset="a", started=0.0, time=said["monitor-0"], ended=ended,
            state=RunState(
                roles=tuple(RoleRecord(name=name, time=said[name]) for name in NAMES),
                shards=(ShardStatus(index=0, error=error),),
            ),
        )  # fmt: skip
        silent = heartbeats.silent(status, [Living(name, 0.0) for name in NAMES], now)
    return silent


@pytest.mark.parametrize("name", NAMES)
def test_a_role_that_says_nothing_is_found_after_the_limit(name: str) -> None:
    assert watch(130, stops=name) == {}
    assert watch(132, stops=name) == {name: 32.0}


def test_nobody_is_blamed_for_a_shard_that_does_not_answer() -> None:
    assert watch(128, deaf=(100, 200)) == {}
    assert watch(160, deaf=(100, 200)) == {"replay-0": 60.0}
    assert watch(220, deaf=(100, 200)) == {}  # the others have time from then on


def test_nobody_is_blamed_when_the_machine_slept() -> None:
    assert watch(1110, gap=1000.0) == {}


def test_an_ended_run_has_no_silent_roles() -> None:
    assert watch(200, stops="actor-0", ended=True) == {}


def test_a_new_process_has_time_for_its_first_word() -> None:
    heartbeats = Heartbeats(LIMIT)
    found: dict[str, int] = {}
    for now in range(1000, 1400):
        state = RunState(roles=(RoleRecord(name="actor-0", time=900.0), RoleRecord(name="actor-1", time=float(now))))
        status = RunStatus(preset="a", started=0.0, time=float(now), state=state)
        for name in heartbeats.silent(status, [Living("actor-0", 1000.0)], float(now)):
            found.setdefault(name, now)
    assert found == {"actor-0": 1000 + START_SECONDS + 1}


def test_nobody_is_blamed_when_nobody_is_heard() -> None:
    """As when the monitor was started again on a busy machine, and hasn't come to the records yet."""
    heartbeats = Heartbeats(LIMIT)
    names = ("actor-0", "actor-1", "learner-0")
    for now in range(100, 300):
        state = RunState(roles=tuple(RoleRecord(name=name, time=100.0) for name in names))
        status = RunStatus(preset="a", started=0.0, time=float(now), state=state)
        assert heartbeats.silent(status, [Living(name, 0.0) for name in names], float(now)) == {}


def test_no_time_passes_while_the_monitor_writes_nothing() -> None:
    heartbeats = Heartbeats(LIMIT)
    names = ("actor-0", "replay-0", "learner-0")
    roles = tuple(RoleRecord(name=name, time=100.0) for name in names)
    status = RunStatus(preset="a", started=0.0, time=101.0, state=RunState(roles=roles))
    for now in range(101, 300):
        assert heartbeats.silent(status, [Living(name, 0.0) for name in names], float(now)) == {}


def test_no_limit_calls_nobody_silent() -> None:
    heartbeats = Heartbeats(0.0)
    status = RunStatus(preset="a", started=0.0, time=5.0, state=RunState(roles=(RoleRecord(name="actor-0", time=5.0),)))
    assert not any(heartbeats.silent(status, [Living("actor-0", 0.0)], float(now)) for now in range(6, 100))
