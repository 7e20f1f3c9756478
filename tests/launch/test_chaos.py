"""Harm that is done on purpose: a program gets over it, and what it doesn't get over is said."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch.chaos import Injection, Verdict, plan
from launch.faults import FAULTS, Program, log_time
from launch.run_directory import RunDirectory
from launch.run_state import read_status
from tests.launch.programs import REPOSITORY, environment


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "launch.chaos", *arguments]


@pytest.mark.slow
def test_a_program_gets_over_faults_of_each_kind(tmp_path: Path) -> None:
    faults = ("--faults=kill,raise,damage,pause", "--roles=actor-0,replay-0,learner-0", "--rounds=1", "--seed=3")
    done = subprocess.run(
        command("--config=apex_catch", *faults, "--set", f"run.directory={tmp_path}"),
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "held: no hang, no orphan" in done.stdout
    assert "11 faults" in done.stdout  # three kinds on three roles, and damage on those two that have checkpoints
    learner = (tmp_path / "latest" / "logs" / "learner-0.log").read_text()
    assert "An exception that launch.chaos asked for." in learner
    assert "is skipped" in learner


@pytest.mark.slow
def test_weights_that_are_held_back_leave_the_learner_learning(tmp_path: Path) -> None:
    faults = ("--faults=delay", "--rounds=1", "--set", f"run.directory={tmp_path}", "run.target_return=inf")
    seen: dict[int, set[int]] = {}  # learner steps at which an actor said so, by the version that it acted with
    with subprocess.Popen(command("--config=apex_catch", *faults), cwd=REPOSITORY, env=environment()) as process:
        while process.poll() is None:
            status = read_status(tmp_path / "latest" / "status.json")
            for role in status.state.roles if status else ():
                if status and role.name == "actor-0" and role.version:
                    seen.setdefault(role.version, set()).add(status.state.learner_steps)
            time.sleep(0.2)
    assert process.returncode == 0
    steps = sorted((max(steps) - min(steps), version) for version, steps in seen.items())
    assert steps[-1][0] > 5 * max(1, steps[len(steps) // 2][0]), steps  # one version was acted with for long
    assert max(seen) > steps[-1][1]  # and newer ones after it


@pytest.mark.slow
def test_its_program_does_not_outlive_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--config=apex_catch", "--set", f"run.directory={tmp_path}"),
        cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "latest" / "logs" / "actor-0.log").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config=apex_catch", "--faults=kil"], "--faults=kil is no fault. There are: kill, "),
        (["--config=apex_cat"], "Did you mean apex_catch"),
        (["--config=apex_catch", "--set", "learner.batchsize=3"], "Did you mean learner.batch_size"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        command(*arguments), cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert words in done.stderr


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The folder of a program with a few roles, that doesn't run."""
    run = RunDirectory(tmp_path)
    run.logs.mkdir()
    for name in ("actor-0", "actor-1", "learner-0", "replay-0", "monitor-0", "evaluator-0", "preflight-0"):
        run.log(name).write_text(f"I0102 03:04:05.5 1 child.py:1] {name} starts as process 7.\n")
    run.log("warm").touch()
    return Program(run, seed=0)


def test_each_fault_meets_each_role_it_can_once_a_round(program: Program) -> None:
    pairs = list(plan(program, list(FAULTS), [], rounds=2))
    half = len(pairs) // 2
    assert set(pairs[:half]) == set(pairs[half:])
    assert len(set(pairs)) == half
    assert ("damage", "actor-0") not in pairs
    assert ("damage", "replay-0") in pairs
    assert not any(role.startswith(("preflight", "warm")) for _, role in pairs)
    again = Program(program.run, seed=0)
    assert list(plan(again, list(FAULTS), [], rounds=2)) == pairs
    assert list(plan(Program(program.run, seed=1), list(FAULTS), [], rounds=2)) != pairs


def test_roles_are_chosen_by_name_or_kind(program: Program) -> None:
    assert {role for _, role in plan(program, ["kill"], ["actor", "replay-0"], rounds=1)} == {
        "actor-0", "actor-1", "replay-0",
    }  # fmt: skip


def test_a_role_works_again_when_its_new_process_says_so(program: Program) -> None:
    log = program.run.log("actor-0")
    lines = log.read_text()
    killed_at = log_time("I0102 03:04:06.0 1 a.py:1] ")
    assert killed_at is not None
    lines += "I0102 03:04:06.1 1 actor.py:1] Acting with the weights of learner step 3.\n"  # the old one's last words
    log.write_text(lines)
    assert program.working_since("actor-0", killed_at) is None
    log.write_text(lines + "I0102 03:04:07.0 1 child.py:1] actor-0 starts as process 8.\n")
    assert program.working_since("actor-0", killed_at) is None
    assert program.pid("actor-0") == 8
    with log.open("a") as file:
        file.write("I0102 03:04:07.5 1 actor.py:1] Acting with the weights of learner step 4.\n")
    assert program.working_since("actor-0", killed_at) == pytest.approx(killed_at + 1.5)


def test_a_verdict_says_what_did_not_hold() -> None:
    injections = [Injection("kill", "actor-0", 1.0), Injection("kill", "actor-1", None)]
    good = Verdict(injections[:1], (), 100.0, 0.9)
    bad = Verdict(injections, ("actor-1 did not work again within 90 s of kill",), 100.0, None)
    assert good.holds
    assert list(good.lines())[-1].startswith("held")
    assert not bad.holds
    assert list(bad.lines())[-2:] == ["PROBLEM: actor-1 did not work again within 90 s of kill", "did NOT hold"]
