"""Hand-worked runs through the aggregation."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launch.aggregate import Aggregate
from launch.run_directory import to_json
from launch.run_state import Limits, RunStatus, ShardStatus, read_status
from launch.waits import stale_weights

START = 1_000.0  # seconds


@dataclasses.dataclass(frozen=True)
class Said:
    role: str
    index: int
    time: float
    values: Mapping[str, Any]


def actor(index: int, time: float, steps: int, **values: Any) -> Said:
    return Said("actor", index, time, {"environment_steps": steps, **values})


def make_aggregate() -> Aggregate:
    return Aggregate(["replay-0", "actor-0", "actor-1", "learner-0"], 1, START)


def test_environment_steps_are_the_sum_over_actors() -> None:
    run = make_aggregate()
    run.add([actor(0, 1, 10), actor(1, 1, 5), actor(0, 2, 12)], START + 2)
    assert run.environment_steps == 12 + 5


@pytest.mark.parametrize("pids", [(7, 8), (1, 1), (None, None)], ids=["new pid", "same pid", "no pid"])
def test_a_total_survives_a_restart(pids: tuple[int | None, int | None]) -> None:
    before, after = ({} if pid is None else {"pid": pid} for pid in pids)
    run = make_aggregate()
    run.add([actor(0, 1, 100, **before), actor(0, 2, 150, **before)], START)
    run.add([actor(0, 3, 20, **after), actor(0, 4, 30, **after)], START)
    assert run.environment_steps == 150 + 30
    assert [role.restarts for role in run.state(START).roles if role.name == "actor-0"] == [1]


def test_a_new_pid_is_a_restart_though_the_counter_is_ahead() -> None:
    run = make_aggregate()
    run.add([actor(0, 1, 100, pid=7), actor(0, 2, 160, pid=8)], START)
    assert run.environment_steps == 260
    same = make_aggregate()
    same.add([actor(0, 1, 100, pid=7), actor(0, 2, 160, pid=7)], START)
    assert same.environment_steps == 160  # control


def test_a_late_record_is_not_a_restart_but_its_episodes_count() -> None:
    run = make_aggregate()
    run.add([actor(0, 2, 200, pid=7)], START)
    run.add([actor(0, 1, 100, pid=7, episodes=[[4.0, 2]])], START)  # came through another shard
    run.add([actor(0, 3, 5, pid=8)], START)
    run.add([actor(0, 2.5, 250, pid=7)], START)  # of the process that is gone
    assert run.environment_steps == 205
    assert run.state(START).training_return == 4.0


def test_records_of_one_read_are_taken_by_their_times() -> None:
    run = make_aggregate()
    run.add([actor(0, 2, 20), actor(0, 1, 10)], START)
    assert run.environment_steps == 20  # taken in the order of arrival it would be 20 + 10


def test_a_learner_goes_back_to_its_checkpoint() -> None:
    run = make_aggregate()
    for time, pid, steps, waiting in ((1, 7, 1050, 9.0), (2, 8, 1000, 1.0)):
        run.add([Said("learner", 0, time, {"learner_steps": steps, "seconds_waiting": waiting, "pid": pid})], START)
    assert run.state(START).learner_steps == 1000  # a position
    assert run.total("learner", "seconds_waiting") == 10.0  # control: a count


def test_the_training_return_is_of_the_last_hundred_episodes() -> None:
    run = make_aggregate()
    run.add([actor(0, 1, 1, episodes=[[1000.0, 1]] * 50 + [[2.0, 1]] * 60 + [[4.0, 1]] * 40)], START)
    assert run.state(START).training_return == pytest.approx((60 * 2 + 40 * 4) / 100)
    assert run.state(START).episodes == 150


def test_rates_are_over_the_window() -> None:
    run = make_aggregate()
    learner = {"learner_steps": 0, "seconds_waiting": 0.0}
    for second in range(41):  # 100 steps/s for 20 s, then 400 steps/s for 20 s; the learner waits half of its time
        steps = 100 * second if second <= 20 else 2000 + 400 * (second - 20)
        learner = {"learner_steps": 3 * second, "seconds_waiting": 0.5 * second}
        run.add(
            [
                actor(0, second, steps, seconds_waiting=0.25 * second),
                actor(1, second, 0, seconds_waiting=0.0),
                Said("learner", 0, second, learner),
            ],
            START + second,
        )
        run.mark(START + second)
    state = run.state(START + 40)
    assert state.environment_steps_per_second == pytest.approx(400.0)
    assert state.learner_steps_per_second == pytest.approx(3.0)
    assert state.learner_waiting == pytest.approx(0.5)
    assert state.actors_waiting == pytest.approx(0.125)  # one waits a quarter of its time, the other not at all


def test_waiting_is_the_mean_of_the_learners_processes() -> None:
    run = make_aggregate()
    for second in range(11):  # one waits all the time, the other never; both are at the same step
        for index, waited in enumerate((1.0 * second, 0.0)):
            run.add(
                [Said("learner", index, second, {"learner_steps": second, "seconds_waiting": waited})], START + second
            )
        run.mark(START + second)
    state = run.state(START + 10)
    assert state.learner_waiting == pytest.approx(0.5)
    assert state.learner_steps_per_second == pytest.approx(1.0)  # not of both together


def test_missing_roles_are_no_numbers() -> None:
    state = make_aggregate().state(START)
    assert (state.training_return, state.evaluation, state.policy_lag, state.learner_waiting) == (None,) * 4
    assert {role.state for role in state.roles} == {"no record yet"}


def test_how_long_weights_take_is_the_median_over_the_actors_that_know_it() -> None:
    run = make_aggregate()
    for index, delay in enumerate((0.1, 0.2, 9.0, math.nan)):
        run.add([Said("actor", index, 1, {"weights_delay_s": delay})], START)
    assert run.state(START).weights_delay == 0.2


def test_bad_numbers_are_left_out() -> None:
    run = make_aggregate()
    run.add([actor(0, 1, 10), Said("learner", 0, 1, {"learner_steps": 4, "policy_lag": 2.0, "loss/a": 1.0})], START)
    bad = {"learner_steps": None, "policy_lag": math.nan, "loss/a": math.nan}
    run.add([Said("actor", 0, 2, {"environment_steps": math.nan}), Said("learner", 0, 2, bad)], START)
    state = run.state(START)
    assert (state.environment_steps, state.learner_steps, state.policy_lag) == (10, 4, 2.0)
    assert math.isnan(state.learner_metrics["loss/a"] or 0.0)  # shown, for it is what one must see
    assert json.loads(to_json(state.learner_metrics)) == {"loss/a": None}


def test_a_shard_that_fails_keeps_its_numbers() -> None:
    run = make_aggregate()
    run.set_shard(ShardStatus(index=0, size=5, max_size=10), START)
    run.set_shard(ShardStatus(index=0, error="gone"), START + 1)
    state = run.state(START + 1)
    assert state.shards == (ShardStatus(index=0, size=5, max_size=10, error="gone"),)
    assert next(role for role in state.roles if role.name == "replay-0").state == "doesn't answer"
    run.set_shard(ShardStatus(index=0, size=6, max_size=10), START + 2)
    assert run.state(START + 2).shards[0].error == ""


def test_a_run_goes_on_from_its_file(tmp_path: Path) -> None:
    run = make_aggregate()
    run.add([actor(0, 1, 100, pid=7), actor(0, 2, 50, pid=8, episodes=[[3.0, 1]])], START)
    run.add([Said("evaluator", 0, 2, {"evaluation_return": 9.0, "evaluation_returns": [8.0, 10.0]})], START + 4)
    run.mark(START)
    status = RunStatus(
        preset="a", started=START, time=START + 5, state=run.state(START + 5), limits=Limits(), saved=run.save()
    )
    (tmp_path / "status.json").write_text(to_json(dataclasses.asdict(status)))

    read = read_status(tmp_path / "status.json")
    assert read is not None
    assert read.state == status.state
    again = make_aggregate()
    again.restore(read.state, read.saved)
    assert again.state(START + 5) == run.state(START + 5)
    again.add([actor(0, 3, 60, pid=8, episodes=[[5.0, 1]])], START + 6)
    assert again.environment_steps == 160
    assert again.state(START).training_return == 4.0
    assert again.state(START).evaluation == run.state(START).evaluation
    fresh = make_aggregate()
    fresh.add([actor(0, 3, 60, pid=8)], START + 6)
    assert fresh.environment_steps == 60  # control: without the file the rest is lost


def test_weights_are_not_stale_for_the_time_that_a_run_stood_still() -> None:
    run = make_aggregate()
    run.add([actor(0, 1, 10, version=5), Said("learner", 0, 1, {"learner_steps": 900})], START)
    later = START + 500
    assert stale_weights(run.state(later), 1, later)  # control: so it is if it ran all the time
    again = make_aggregate()
    again.restore(run.state(START), run.save())
    assert not stale_weights(again.state(later), 1, later)
    again.add([actor(0, 502, 20, version=5)], later)
    assert not stale_weights(again.state(later + 1), 1, later + 1)
    assert stale_weights(again.state(later + 500), 1, later + 500)  # from when it was heard again


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    assert read_status(tmp_path / "status.json") is None
    (tmp_path / "status.json").write_text('{"preset": "a"}')
    with pytest.raises(ValueError, match="isn't a status"):
        read_status(tmp_path / "status.json")
