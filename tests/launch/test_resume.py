"""Going on with a run: what is refused, and that everything continues where it was."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.presets import apex_catch
from configs.serialization import from_json, to_json
from launch import resume
from launch.run_checkpoints import RunCheckpoints
from launch.run_directory import RunDirectory
from tests.launch.programs import (
    REPOSITORY,
    command_line,
    environment,
    resume_program,
    run_program,
    wait_for_learning,
)


@pytest.fixture
def ended(tmp_path: Path) -> RunDirectory:
    """The folder of a run, as far as these tests look."""
    run = RunDirectory(tmp_path)
    run.config.write_text(to_json(apex_catch()))
    return run


def test_limits_and_rates_may_change(ended: RunDirectory) -> None:
    overrides = [
        "run.learner_steps=7",
        "agent_config.learning_rate=0.5",
        "topology.actors=9",
        "run.directory=elsewhere",
    ]
    changed = resume.resumed_experiments(ended, overrides)[1]
    assert (changed.run.learner_steps, changed.agent_config.learning_rate, changed.topology.actors) == (7, 0.5, 9)
    assert changed.run.directory == apex_catch().run.directory


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("agent_config.replay.max_size=2000", r"agent_config\.replay\.max_size was 50000 and would be 2000"),
        ("agent=impala", r"agent was 'apex_dqn' and would be 'impala'"),
        ("environment.name=CartPole-v1", r"environment\.name was 'Catch-v0' and would be 'CartPole-v1'"),
        ("topology.shards=3", r"topology\.shards was 2 and would be 3"),
        ("run.learner_step=3", r"Did you mean run\.learner_steps"),
    ],
)
def test_what_checkpoints_do_not_fit_is_refused(ended: RunDirectory, override: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        resume.resumed_experiments(ended, [override])


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run's folder: it has no config\.json"):
        resume.resumed_experiments(RunDirectory(tmp_path / "nowhere"), [])


def test_two_programs_in_one_folder_are_refused(ended: RunDirectory) -> None:
    with resume.claimed(ended), pytest.raises(ValueError, match="still runs"), resume.claimed(ended):
        pass
    with resume.claimed(ended):
        pass  # it was let go


def test_the_time_in_between_does_not_count(ended: RunDirectory) -> None:
    ended.status.write_text(json.dumps({"started": 100.0, "time": 130.0, "ended": True, "reason": "over"}))
    resume.reopen(ended, apex_catch())
    status = json.loads(ended.status.read_text())
    assert status["time"] - status["started"] == pytest.approx(30.0)
    assert (status["ended"], status["reason"]) == (False, "")


@pytest.mark.slow
def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    overrides = ("run.learner_steps=600", "run.target_evaluations=1000", "shard.checkpoint_period=1e9")
    first = run_program("apex_catch", tmp_path, *overrides, timeout=120)
    assert first.code == 0, first.output
    before, rows = first.status["state"], len((first.directory / "metrics.jsonl").read_text().splitlines())
    second = resume_program(first.directory, "run.learner_steps=1200", timeout=120)
    assert second.code == 0, second.output
    assert "1,200 learner steps reached" in second.output
    after = second.status["state"]
    assert after["environment_steps"] > before["environment_steps"] > 0
    assert "Restored the learner at step 600." in (first.directory / "logs/learner-0.log").read_text()
    for index, shard in enumerate(before["shards"]):
        log = (first.directory / f"logs/replay-{index}.log").read_text()
        saved = re.findall(r"Checkpoint of .*'trajectories': (\d+)", log)
        restored = re.findall(r"Restored (\d+) items", log)
        assert restored == saved[:1]  # all that was there when the first part ended
        assert int(restored[0]) >= shard["size"] > 0  # actors went on writing after the monitor's last look
    lines = [json.loads(line) for line in (first.directory / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) > rows
    for name in ("elapsed", "environment_steps", "learner_steps"):
        values = [line[name] for line in lines]
        assert values == sorted(values)
    assert from_json((first.directory / "config.json").read_text()).run.learner_steps == 1200


@pytest.mark.slow
def test_a_killed_run_goes_back_to_its_last_checkpoint(tmp_path: Path) -> None:
    """A checkpoint by command; then the launcher is killed, and the run goes on from that very moment."""
    command = command_line(
        "apex_catch", tmp_path,
        "run.target_evaluations=1000", "learner.checkpoint_period=0", "shard.checkpoint_period=1e9",
    )  # fmt: skip
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL) as program:
        run = tmp_path / "latest"
        try:
            wait_for_learning(run / "status.json", program)
            asked = subprocess.run(
                [sys.executable, "-m", "launch.checkpoint", str(run)],
                cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert asked.returncode == 0, asked.stderr
            time.sleep(2.0)  # of work that is lost
        finally:
            program.kill()
    manifest = next(RunCheckpoints(RunDirectory(run), apex_catch()).newest_first())
    assert f"learner step {manifest.learner.step:,}, " in asked.stdout
    assert manifest.status is not None
    went_on = resume_program(run.resolve(), f"run.learner_steps={manifest.learner.step + 300}", timeout=120)
    assert went_on.code == 0, went_on.output
    assert f"Going on from learner step {manifest.learner.step:,}" in went_on.output
    assert "Set aside: " in went_on.output
    log = (run / "logs/learner-0.log").read_text()
    assert f"Restored the learner at step {manifest.learner.step}." in log
    for index, part in enumerate(manifest.shards):
        restored = re.findall(r"Restored (\d+) items", (run / f"logs/replay-{index}.log").read_text())
        assert restored == [str(part.items["trajectories"])]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(row for row in rows if row["time"] > manifest.status["time"])
    before, after = manifest.status["state"]["environment_steps"], first["environment_steps"]
    assert before <= after < before + 20_000  # counted from there, not from where it was killed nor from zero
    for name in ("elapsed", "environment_steps", "learner_steps"):
        values = [row[name] for row in rows]
        assert values == sorted(values)
