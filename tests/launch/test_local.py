"""The command itself: what it prints, leaves and returns, in good and in bad ways to end."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from configs.overrides import apply_overrides
from configs.presets import preset
from configs.serialization import from_json
from launch import local
from launch.learner_manifests import steps_in
from launch.processes import COORDINATOR
from tests.launch.programs import REPOSITORY, command_line, environment, learning, run_program, wait_for_learning

FILES = ("config.json", "metrics.jsonl", "curve.png", "status.json", "tensorboard", "logs", "checkpoints")


def say(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(arguments), cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (("learner.batchsize=3",), "Did you mean learner.batch_size"),
        (("learner.batch_size=many",), "learner.batch_size=many: got 'many', want int"),
        (("agent=impalla",), "Did you mean impala"),
        (("agent_config.replay.period=2",), "replay.period=2 must be <= trace=1"),
    ],
)
def test_a_typo_is_answered_at_once(overrides: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    done = say(*command_line("apex_cartpole", tmp_path, *overrides))
    assert (done.returncode, done.stdout) == (2, "")
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_learner_processes_are_told_where_to_meet() -> None:
    experiment = apply_overrides(preset("apex_cartpole"), ["learner.processes=2"])
    assignments = local.assignments_of(experiment, ["127.0.0.1:1"], Path("unused"))
    variables = local.environments_of(experiment, assignments)
    meeting = {name: found[COORDINATOR] for name, found in variables.items() if COORDINATOR in found}
    assert sorted(meeting) == ["learner-0", "learner-1"]
    assert meeting["learner-0"] == meeting["learner-1"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", meeting["learner-0"])


def test_an_unknown_preset_is_answered_with_the_nearest(tmp_path: Path) -> None:
    done = say(*command_line("apex_cartpol", tmp_path))
    assert done.returncode == 2
    assert "Did you mean apex_cartpole" in done.stderr


def test_help_lists_presets_and_documents_every_field() -> None:
    command = command_line("apex_cartpole", Path("unused"))[:3]
    done = say(*command, "--help")
    assert done.returncode == 0
    for wanted in ("impala_pong", "learner.batch_size=", "sequences", "--dry_run", "run.target_return=", "Exit code 0"):
        assert wanted in done.stdout


@pytest.mark.slow
def test_dry_run_prints_the_program_and_starts_nothing(tmp_path: Path) -> None:
    done = say(*command_line("apex_pong", tmp_path, extra=("--dry_run",)))
    assert done.returncode == 0, done.stderr
    for wanted in ("2 replay shards", "Pong-v5", "GiB", "max_size=150000", "4 rows"):
        assert wanted in done.stdout
    assert "INFO" not in done.stderr  # what libraries say of this machine
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_cannot_run_is_refused_before_any_role_starts(tmp_path: Path) -> None:
    done = run_program("impala_cartpole", tmp_path, "environment.name=CartPole-v9", timeout=90)
    assert done.code == 1
    assert "CartPole-v1" in done.output
    assert "environment.name" in done.output
    assert not (done.directory / "logs" / "learner-0.log").exists()
    assert (done.directory / "logs" / "preflight-0.log").exists()


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_learner(tmp_path: Path) -> None:
    overrides = ("agent_config.learning_rate=1e38", "supervision.final=learner", "run.seconds=60")
    done = run_program("impala_catch", tmp_path, *overrides, timeout=120)
    assert done.code == 1, done.output
    assert "learner-0 failed" in done.output
    assert "The loss is nan at learner step" in done.output
    checkpoints = done.directory / "checkpoints" / "learner"
    assert not checkpoints.exists() or list(checkpoints.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("start", ["warm", "spawn"])
def test_a_run_leaves_its_files_and_says_where(start: str, tmp_path: Path) -> None:
    done = run_program("impala_catch", tmp_path, "run.learner_steps=60", f"run.start={start}", timeout=240)
    assert done.code == 0, done.output
    assert "60 learner steps reached" in done.output
    for name in FILES:
        assert (done.directory / name).exists(), done.output
    experiment = from_json((done.directory / "config.json").read_text())
    assert (experiment.name, experiment.run.learner_steps, experiment.run.start) == ("impala_catch", 60, start)
    assert steps_in(done.directory / "checkpoints" / "learner")[-1] == 60  # saved as it ended
    rows = [json.loads(line) for line in (done.directory / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["learner_steps"] == 60
    with Image.open(done.directory / "curve.png") as image:
        assert image.size[0] > 500
    assert "\x1b" not in done.output  # piped: no control characters


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    code, output, seconds = interrupt(tmp_path, lambda launcher: launcher.send_signal(signal.SIGINT))
    assert code == 130, output
    assert seconds < 15
    assert "stopped by SIGINT" in output
    assert "Traceback" not in output
    directory = (tmp_path / "latest").resolve()
    assert all((directory / name).exists() for name in FILES)
    assert steps_in(directory / "checkpoints" / "learner")  # saved as it stopped


@pytest.mark.slow
def test_a_killed_role_ends_it_with_its_name(tmp_path: Path) -> None:
    def kill_an_actor(launcher: psutil.Process) -> None:
        status = json.loads((tmp_path / "latest" / "status.json").read_text())
        log = (tmp_path / "latest" / "logs" / "actor-1.log").read_text()
        assert status["state"]["environment_steps"] > 0
        os.kill(int(log.split("actor-1 starts as process ")[1].split(".")[0]), signal.SIGKILL)

    code, output, _ = interrupt(tmp_path, kill_an_actor)
    assert code == 1, output
    assert "actor-1 was killed by SIGKILL" in output.partition("checkpoints ")[2]  # behind the summary, before its log


def interrupt(directory: Path, act) -> tuple[int, str, float]:
    """Starts a program, acts on it once it learns, and waits for its end: exit code, output, seconds that took."""
    with open(directory.parent / f"{directory.name}.txt", "w+") as output:
        process = subprocess.Popen(
            command_line("impala_catch", directory, "run.target_return=2", "supervision.restarts=0"),
            cwd=REPOSITORY, env=environment(), stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        launcher = psutil.Process(process.pid)
        try:
            wait_for_learning(directory / "latest" / "status.json", process)
            family = launcher.children(recursive=True)
            act(launcher)
            began = time.monotonic()
            code = process.wait(timeout=40)
            seconds = time.monotonic() - began
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        output.seek(0)
        text = output.read()
        assert not alive, text
        return code, text, seconds


@pytest.mark.slow
@pytest.mark.parametrize("config", ["impala_catch", "apex_catch"])
def test_killed_roles_come_back_and_the_run_goes_on(config: str, tmp_path: Path) -> None:
    """One of each kind is killed in turn; the program still learns to catch every ball."""
    keeps = config == "apex_catch"  # a queue keeps nothing
    overrides = ("run.target_evaluations=1000", "run.seconds=100", "shard.checkpoint_period=1")
    with learning(tmp_path, config, *overrides) as (process, directory):
        for name in ("actor-0", "evaluator-0", "replay-0", "learner-0", "monitor-0"):
            if name == "replay-0" and keeps:
                wait_until(lambda: "Checkpoint of" in (directory / "logs/replay-0.log").read_text(), 30)
            kill_and_wait(directory, name)
        restored = re.findall(r"Restored (\d+) items", (directory / "logs/replay-0.log").read_text())
        assert [int(items) > 0 for items in restored] == [True] * keeps
        wait_until(lambda: evaluation(directory) >= 0.95, 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


@pytest.mark.slow
def test_a_role_that_stops_answering_is_reported_and_started_again(tmp_path: Path) -> None:
    overrides = ("run.target_evaluations=1000", "run.seconds=150", "supervision.silence=6")
    with learning(tmp_path, "apex_catch", *overrides) as (process, directory):
        for name in ("actor-0", "replay-1", "learner-0", "monitor-0"):
            kill_and_wait(directory, name, signal.SIGSTOP)
            assert f"{name} gave no sign of life for" in (tmp_path / "output.txt").read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def kill_and_wait(directory: Path, name: str, how: signal.Signals = signal.SIGKILL) -> None:
    """Kills or stops a role, and waits until it is back and learning goes on."""
    pid = newest_pid(directory, name)
    os.kill(pid, how)
    wait_until(lambda: newest_pid(directory, name) != pid, 60)
    steps = learner_steps(directory)
    wait_until(lambda: learner_steps(directory) not in (0, steps), 60)


def newest_pid(directory: Path, name: str) -> int:
    return int((directory / "logs" / f"{name}.log").read_text().split(f"{name} starts as process ")[-1].split(".")[0])


def state_of(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "status.json").read_text())["state"]
    return content


def learner_steps(directory: Path) -> int:
    return int(state_of(directory)["learner_steps"])


def evaluation(directory: Path) -> float:
    return float((state_of(directory)["evaluation"] or {"mean": -1.0})["mean"])


def wait_until(reached: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.2)
