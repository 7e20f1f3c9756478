"""What is said of who waits, and when a run ends."""

import dataclasses
import math
from typing import Any

import pytest

from configs.experiment import RunConfig
from launch.ending import TargetWatch, end_reason, limits_of
from launch.run_state import Evaluation, RoleRecord, RunState, ShardStatus
from launch.waits import advise, first_words_missing, stale_weights, who_waits
from replay.spec import ReplaySpec

QUEUE = ReplaySpec(queue=True, max_size=64)
RATIO = ReplaySpec(max_size=100, min_size=20, samples_per_insert=4.0, error_buffer=8.0)


def shard(**values: Any) -> RunState:
    return RunState(shards=(ShardStatus(**{"index": 0, "size": 30, "max_size": 50, **values}), ShardStatus(index=1)))


@pytest.mark.parametrize(
    ("replay", "state", "words"),
    [
        (QUEUE, shard(blocked="inserts"), ["blocks the actors", "queue is full (30 of 50", "replay.max_size"]),
        (QUEUE, shard(blocked="samples"), ["blocks the learner", "actor-0.log", "learner.batch_size"]),
        (
            RATIO,
            shard(blocked="samples", size=9),
            ["blocks the learner", "holds 9 items", "at about 10", "min_size=20"],
        ),
        (RATIO, shard(blocked="samples"), ["blocks the learner", "samples_per_insert=4", "error_buffer (now 8)"]),
        (RATIO, shard(blocked="inserts"), ["blocks the actors", "samples_per_insert=4", "error_buffer (now 8)"]),
        (RATIO, shard(error="no answer"), ["Shard 0 doesn't answer (no answer)", "logs/replay-0.log"]),
    ],
)
def test_advice_names_the_table_the_role_and_the_field(replay: ReplaySpec, state: RunState, words: list[str]) -> None:
    (line,) = advise(state, replay)
    for word in words:
        assert word in line


def test_advice_blames_no_table_that_blocks_nobody() -> None:
    (line,) = advise(shard(), RATIO)
    assert "No limiter blocks anybody" in line


def test_roles_that_said_nothing_are_named() -> None:
    roles = (RoleRecord(name="actor-0", time=5.0), RoleRecord(name="learner-0"))
    assert first_words_missing(RunState(roles=roles)) == "no record from learner-0 yet"
    assert first_words_missing(RunState(roles=roles[:1])) == ""
    assert "learner-0" in " ".join(advise(RunState(roles=roles), RATIO))


def test_who_waits_for_whom() -> None:
    state = dataclasses.replace(
        shard(blocked="samples"),
        learner_waiting=0.43,
        actors_waiting=0.05,
        roles=(
            RoleRecord(name="actor-0", state="waiting: weights", time=100.0),
            RoleRecord(name="actor-1", state="running", time=80.0),
            RoleRecord(name="evaluator-0", state="running", time=10.0),  # speaks rarely
        ),
        learner_metrics={"loss/a": None, "loss/b": 1.0, "loss/c": math.nan},
        counts={"actor.items_lost": 3.0, "replay.items_lost": 40.0},
    )
    assert who_waits(state, 100.0) == (
        "learner waits for data 43% of its time (samples blocked at shard 0)",
        "actor-0 is waiting: weights",
        "actor-1 has said nothing for 20 s",
        "about 3 items were lost on their way to replay",
        "about 40 items were lost with their shards",
        "loss/a is not a finite number",
        "loss/c is not a finite number",
    )
    assert who_waits(RunState(), 100.0) == ()


def test_weights_that_stay_behind_are_mentioned() -> None:
    def says(version: int, since: float, learner_steps: int = 1000) -> tuple[str, ...]:
        role = RoleRecord(name="actor-1", state="running", time=99.0, version=version, version_time=since)
        return stale_weights(RunState(roles=(role,), learner_steps=learner_steps), 10, now=100.0)

    assert says(500, 60.0) == (
        "actor-1 has acted with weights of learner step 500 for 40 s, and the learner is at 1,000: "
        "see logs/actor-1.log",
    )
    assert says(500, 75.0) == ()  # not for long
    assert says(985, 60.0) == ()  # the learner has hardly moved
    assert says(1000, 0.0) == ()  # or not at all


def evaluation(mean: float, version: int, episodes: int = 20) -> Evaluation:
    return Evaluation(
        elapsed=1, environment_steps=61_440, learner_steps=9, version=version, mean=mean, episodes=episodes
    )


@pytest.mark.parametrize(
    ("run", "state", "reason"),
    [
        ({}, RunState(environment_steps=10**9, learner_steps=10**9, elapsed=1e9), ""),
        ({"environment_steps": 100}, RunState(environment_steps=99), ""),
        ({"environment_steps": 100}, RunState(environment_steps=104), "100 environment steps reached (104 done)"),
        ({"learner_steps": 5}, RunState(learner_steps=5), "5 learner steps reached (5 done)"),
        ({"learner_steps": 5}, RunState(learner_steps=4, environment_steps=10), ""),
        ({"seconds": 90.0}, RunState(elapsed=90.5), "90 seconds are over"),
        ({"seconds": 90.0}, RunState(elapsed=89.0), ""),
    ],
)
def test_a_run_ends_at_its_limits(run: dict[str, Any], state: RunState, reason: str) -> None:
    assert end_reason(state, limits_of(RunConfig(**run))) == reason


def watch(*evaluations: Evaluation, target: float | None = 475.0) -> str:
    target_watch = TargetWatch(target, needed=2, episodes=20)
    for each in evaluations:
        target_watch.add(each)
    return target_watch.reason


def test_a_target_ends_the_run_when_it_is_held() -> None:
    assert watch(evaluation(470.0, 8), evaluation(498.24, 9), evaluation(480.0, 10)) == (
        "target return 475 reached by 2 evaluations in a row: at least 480.0 over 20 episodes each, at 61,440 "
        "environment steps"
    )
    assert watch(evaluation(-4.0, 1), evaluation(-3.0, 2), target=-5.0)


def test_a_lucky_evaluation_does_not() -> None:
    assert not watch(evaluation(500.0, 12), evaluation(24.6, 216), evaluation(500.0, 300))
    assert not watch(evaluation(500.0, 12), evaluation(500.0, 12))  # the same weights again
    assert not watch(evaluation(500.0, 12), evaluation(500.0, 13, episodes=19))
    assert not watch(evaluation(500.0, 12), evaluation(500.0, 13), target=None)
