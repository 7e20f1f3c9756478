"""The monitor against real replay shards and real records."""

import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import portpicker
import pytest
import reverb
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from configs.experiment import Experiment, RunConfig, TopologyConfig
from launch import monitor
from launch.roles import Assignment
from launch.run_directory import RunDirectory
from launch.run_state import RunStatus, read_status
from replay.metrics import MetricsWriter, make_metrics_table
from replay.spec import ReplaySpec
from replay.tables import TRAJECTORIES

DEADLINE = 60.0  # seconds


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    replay: ReplaySpec


REPLAY = ReplaySpec(max_size=20, min_size=10)


def make_server(port: int | None = None) -> tuple[reverb.Server, str]:
    port = port or portpicker.pick_unused_port()
    trajectories = reverb.Table(
        name=TRAJECTORIES,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=10,
        rate_limiter=reverb.rate_limiters.MinSize(5),
    )
    return reverb.Server([trajectories, make_metrics_table()], port=port), f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, ...]]:
    servers = [make_server() for _ in range(2)]
    yield tuple(address for _, address in servers)
    for server, _ in servers:
        server.stop()


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def make_assignment(directory: RunDirectory, addresses: tuple[str, ...], **run: Any) -> Assignment:
    experiment = Experiment(
        name="proof",
        agent="impala",
        agent_config=AgentConfig(REPLAY),
        run=RunConfig(**run),
        topology=TopologyConfig(shards=2, actors=2),
    )
    return Assignment(role="monitor", index=0, experiment=experiment, addresses=addresses, run_directory=directory.path)


class Watched:
    """A monitor in a thread, and writers for it to hear."""

    def __init__(self, assignment: Assignment) -> None:
        self.stop = threading.Event()
        self.reason: str | None = None
        self._assignment = assignment
        self._writers: dict[tuple[str, int], MetricsWriter] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.reason = monitor.run(self._assignment, self.stop)

    def say(self, role: str, index: int, **values: Any) -> None:
        if (role, index) not in self._writers:
            self._writers[role, index] = MetricsWriter(self._assignment.addresses, role, index)
        self._writers[role, index].write(values)

    def wait_for(self, condition: Callable[[RunStatus], bool]) -> RunStatus:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            report = read_status(RunDirectory(self._assignment.run_directory).status)
            if report is not None and condition(report):
                return report
            time.sleep(0.1)
        raise AssertionError(f"never came true; the last status was {report}")

    def end(self) -> str:
        self.stop.set()
        return self.join()

    def join(self) -> str:
        for writer in self._writers.values():
            writer.close(5.0)
        self._thread.join(DEADLINE)
        assert self.reason is not None, "the monitor did not end"
        return self.reason


def test_records_of_all_shards_reach_every_file(directory: RunDirectory, addresses: tuple[str, ...]) -> None:
    watched = Watched(make_assignment(directory, addresses))
    watched.say("actor", 0, environment_steps=100, episodes=[[10.0, 5], [20.0, 5]], state="running", pid=11)
    watched.say("actor", 1, environment_steps=50, episodes=[[60.0, 5]], state="running", pid=12)
    watched.say("learner", 0, learner_steps=7, version=7, policy_lag=1.5, **{"loss/total": 0.25})
    watched.say("evaluator", 0, evaluation_return=33.0, evaluation_returns=[33.0] * 20, version=6)
    report = watched.wait_for(
        lambda report: (
            report.state.environment_steps == 150
            and report.state.learner_steps == 7
            and report.state.evaluation is not None
        )
    )
    assert watched.end() == ""

    assert report.state.training_return == pytest.approx(30.0)
    assert report.state.policy_lag == 1.5
    assert [shard.max_size for shard in report.state.shards] == [10, 10]
    assert [shard.blocked for shard in report.state.shards] == ["samples", "samples"]  # five items to the first sample
    assert {role.name: role.pid for role in report.state.roles}["actor-1"] == 12
    assert {role.name: role.pid for role in report.state.roles}["monitor-0"] == os.getpid()

    rows = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    assert rows[-1]["environment_steps"] == 150
    assert sum(row["new_episodes"] for row in rows) == 3
    assert [evaluation["mean"] for row in rows for evaluation in row["evaluations"]] == [33.0]
    assert rows[-1]["learner"] == {"loss/total": 0.25}

    events = EventAccumulator(str(directory.tensorboard))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert [(e.step, e.value) for e in events.Scalars("by_learner_steps/return/evaluation")] == [(6, 33.0)]
    last = events.Scalars("by_environment_steps/return/training")[-1]
    assert (last.step, last.value) == (150, 30.0)
    assert events.Scalars("by_learner_steps/loss/total")[-1].value == 0.25
    assert "by_environment_steps/replay_fill/shard_1" in tags
    assert "by_environment_steps/replay_fill/shard_2" not in tags  # control: there are two

    final = read_status(directory.status)
    assert final is not None
    assert (final.ended, final.reason) == (True, "")
    with Image.open(directory.curve) as image:
        assert image.size == (1000, 420)


def test_a_target_ends_the_run_only_by_enough_episodes(directory: RunDirectory, addresses: tuple[str, ...]) -> None:
    watched = Watched(make_assignment(directory, addresses, target_return=475.0, target_evaluations=1))
    watched.say("actor", 0, environment_steps=61_440)
    watched.say("evaluator", 0, evaluation_return=500.0, evaluation_returns=[500.0] * 19, version=1)
    watched.wait_for(lambda report: report.state.evaluation is not None and report.state.environment_steps > 0)
    assert watched.reason is None  # control: 19 episodes are one too few
    watched.say("evaluator", 0, evaluation_return=498.25, evaluation_returns=[498.25] * 20, version=2)
    reason = watched.join()
    assert reason == (
        "target return 475 reached by an evaluation: at least 498.2 over 20 episodes each, at 61,440 environment steps"
    )
    report = read_status(directory.status)
    assert report is not None
    assert (report.ended, report.reason) == (True, reason)


def test_a_restarted_monitor_goes_on(directory: RunDirectory, addresses: tuple[str, ...]) -> None:
    first = Watched(make_assignment(directory, addresses))
    first.say("actor", 0, environment_steps=100, episodes=[[1.0, 1]], pid=11)
    first.say("learner", 0, learner_steps=5)
    before = first.wait_for(lambda report: report.state.environment_steps == 100 and report.state.learner_steps == 5)
    first.end()
    with directory.metrics.open("a") as file:
        file.write('{"elapsed": 3, "half')  # killed while it wrote

    second = Watched(make_assignment(directory, addresses))
    second.say("actor", 0, environment_steps=130, episodes=[[3.0, 1]], pid=11)  # the actor went on
    second.wait_for(lambda report: report.state.environment_steps == 130)
    second.say("actor", 0, environment_steps=40, pid=99)  # and then was restarted
    after = second.wait_for(lambda report: report.state.environment_steps == 170)
    second.end()

    assert after.started == before.started
    assert after.state.learner_steps == 5
    assert after.state.training_return == 2.0  # of both monitors' episodes
    elapsed = [row["elapsed"] for row in map(_json, directory.metrics.read_text().splitlines()) if row]
    assert elapsed == sorted(elapsed)
    assert sum(row is None for row in map(_json, directory.metrics.read_text().splitlines())) == 1  # the half line only


def _json(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)  # type: ignore[no-any-return]
    except ValueError:
        return None


def test_the_status_is_whole_whenever_it_is_read(directory: RunDirectory, addresses: tuple[str, ...]) -> None:
    assignment = make_assignment(directory, addresses)
    watcher = monitor.Monitor(assignment)
    stop, reads = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            report = read_status(directory.status)  # raises for a part of a file
            if report is not None:
                reads.append(report.time)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        watcher.look()
    stop.set()
    reader.join(DEADLINE)
    watcher.end()
    watcher.close()
    assert len(set(reads)) > 3
    assert not [name for name in os.listdir(directory.path) if name.startswith(".")]  # no temporary file is left


def test_a_shard_that_is_gone_is_shown_and_holds_nobody_up(directory: RunDirectory) -> None:
    server, alive = make_server()
    dead = f"127.0.0.1:{portpicker.pick_unused_port()}"
    watched = Watched(make_assignment(directory, (alive, dead)))
    watched.say("actor", 0, environment_steps=8)
    report = watched.wait_for(
        lambda report: report.state.environment_steps == 8 and "asked" not in report.state.shards[1].error
    )
    assert dead in report.state.shards[1].error
    assert report.state.shards[0].error == ""  # control
    assert any("replay-1 doesn't answer" in line for line in report.waits)
    watched.wait_for(lambda later: later.time > report.time + 2)  # it still looks
    watched.end()
    server.stop()


def test_a_standstill_is_explained(
    directory: RunDirectory,
    addresses: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(monitor, "STALL", 1.0)
    monkeypatch.setattr(monitor, "PATIENCE", 1.0)
    caplog.set_level(logging.INFO, logger="absl")
    watched = Watched(make_assignment(directory, addresses))
    watched.say("actor", 0, environment_steps=8)
    report = watched.wait_for(lambda report: report.state.environment_steps == 8 and len(report.advice) > 2)
    monkeypatch.setattr(monitor, "STALL", 1e9)  # so that no new advice comes before this thread has looked
    watched.say("actor", 0, environment_steps=16)
    watched.wait_for(lambda report: report.state.environment_steps == 16 and not report.advice)  # control: it moved
    watched.end()
    # Each shard holds none of the 5 items that the first sample needs, and nothing was heard of the others.
    assert "Table trajectories of shard 0 blocks the learner: it holds 0 items" in report.advice[0]
    assert "agent_config.replay.min_size=10 over 2 shards" in report.advice[0]
    assert "no record from actor-1, learner-0, evaluator-0 yet" in report.advice[2]
    assert "Waiting: no record from" in caplog.text
    assert "Nothing has moved for" in caplog.text


def test_an_unwritable_folder_names_the_field(tmp_path: Path, addresses: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"run\.directory"):
        monitor.run(make_assignment(RunDirectory(tmp_path / "file" / "run"), addresses), threading.Event())
