"""Whole local programs of small roles, through the real Launchpad and the real warm process."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch import warm
from launch.program import _node_of
from launch.restarts import RestartPolicy
from tests.launch.small_program import run_small

MARK = "ANTIPHON_TEST_RUN"
DEADLINE = 60.0  # seconds for a start on a busy machine


@pytest.fixture
def mark(monkeypatch):
    """A variable that every process of the program under test inherits."""
    value = secrets.token_hex(8)
    monkeypatch.setenv(MARK, value)
    yield value
    for process in processes(value):
        process.kill()


def processes(mark: str) -> list[psutil.Process]:
    """All living processes with the mark; forked ones show the environment that their parent was started with."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition, what: str, seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(0.05)


class Launcher:
    """A launcher process and its states."""

    def __init__(self, directory: Path, *plays: str, start: str = "warm", grace: float = 8.0) -> None:
        self.directory = directory
        command = [sys.executable, "-m", "tests.launch.small_program", str(directory), start, str(grace), *plays]
        self.process = subprocess.Popen(command, start_new_session=True)
        wait_until(self.all_running, "all roles to run")

    def all_running(self) -> bool:
        assert self.process.poll() is None, "the launcher ended"
        path = self.directory / "states.json"
        self.states = json.loads(path.read_text()) if path.exists() else {}
        return bool(self.states) and all(state["status"] == "running" for state in self.states.values())

    def end(self) -> tuple[int, dict[str, object]]:
        code = self.process.wait(timeout=DEADLINE)
        return code, json.loads((self.directory / "outcome.json").read_text())


def nodes_of(mark: str) -> list[psutil.Process]:
    return [process for process in processes(mark) if "process_entry.py" in " ".join(process.cmdline()[1:2])]


def node_of(title: str, mark: str) -> psutil.Process:
    """A node by the title that its shell, its parent, was given."""
    parents = {node: node.parent() for node in nodes_of(mark)}
    return next(node for node, parent in parents.items() if parent is not None and title in parent.cmdline())


def warm_of(mark: str) -> psutil.Process:
    found = [process for process in processes(mark) if "launch.warm" in process.cmdline()]
    return next(process for process in found if process.ppid() not in [other.pid for other in found])


def test_a_node_is_known_from_its_first_moment():
    """Just after a process was started the kernel may not show its arguments yet: so it was at 12 of 400 starts."""
    for _ in range(100):
        process = subprocess.Popen(["/bin/sh", "-c", "read line", "actor/0"], stdin=subprocess.PIPE)
        try:
            assert _node_of(psutil.Process(process.pid), ["actor/0", "replay/0"]) == "actor/0"
        finally:
            process.communicate()


@pytest.mark.parametrize("start", ["warm", "spawn"])
def test_the_monitors_reason_ends_the_run_and_nothing_is_left(tmp_path, mark, start):
    outcome = run_small(tmp_path, start, 8.0, ["replay=patient", "actor=patient", "actor=patient", "monitor=short"])
    assert outcome == (0, "it was enough", "", ())
    assert processes(mark) == []
    logs = {path.name for path in (tmp_path / "logs").iterdir()}
    assert logs >= {"replay-0.log", "actor-0.log", "actor-1.log", "monitor-0.log", "launchpad.log"}
    assert "actor-1 ends: it was asked to stop." in (tmp_path / "logs/actor-1.log").read_text()


def test_a_role_that_raises_ends_the_run_with_its_traceback(tmp_path, mark):
    outcome = run_small(tmp_path, "warm", 8.0, ["replay=patient", "actor=raising", "monitor=patient"])
    assert outcome.code == 1
    assert outcome.failure.startswith("actor-0 failed with exit code 1.")
    assert outcome.failure.endswith("RuntimeError: the dog ate it")
    assert str(tmp_path / "logs/actor-0.log") in outcome.failure
    assert "replay-0 ends: it was asked to stop." in (tmp_path / "logs/replay-0.log").read_text()
    assert processes(mark) == []


def test_an_actor_that_returns_early_has_failed(tmp_path, mark):
    outcome = run_small(tmp_path, "warm", 8.0, ["replay=patient", "actor=short", "monitor=patient"])
    assert outcome.code == 1
    assert "actor-0 ended before the run did" in outcome.failure
    assert "it was enough" in outcome.failure


def test_a_failure_while_stopping_is_not_lost(tmp_path, mark):
    outcome = run_small(tmp_path, "warm", 8.0, ["replay=patient", "learner=raising_at_stop", "monitor=short"])
    assert outcome.code == 1
    assert outcome.reason == "it was enough"
    assert "RuntimeError: nothing was saved" in outcome.failure


def test_shards_stop_after_those_who_write_to_them(tmp_path, mark):
    order: list[str] = []

    def look(states):
        order.extend(name for name, state in states.items() if state.exited and name not in order)

    outcome = run_small(tmp_path, "warm", 2.0, ["replay=patient", "actor=stuck", "monitor=short"], on_tick=look)
    assert outcome.code == 0
    assert order[0] == "monitor-0"
    stopped = (tmp_path / "logs/replay-0.log").stat().st_mtime - (tmp_path / "logs/monitor-0.log").stat().st_mtime
    assert stopped > 1.0  # its turn comes after three quarters of the grace period, since the actor doesn't end


def test_a_stuck_role_is_killed_after_it_told_where_it_was(tmp_path, mark):
    outcome = run_small(tmp_path, "warm", 1.0, ["actor=stuck", "monitor=short"])
    assert outcome.code == 0
    assert outcome.problems[0].startswith("actor-0 did not stop in time and was killed")
    assert "small_roles.py" in outcome.problems[0]
    assert "in stuck" in outcome.problems[0]
    assert processes(mark) == []


def test_a_role_that_crashes_when_asked_where_it_is_has_been_killed_not_failed(tmp_path, mark):
    outcome = run_small(tmp_path, "warm", 1.0, ["actor=crashing_at_its_dump", "monitor=short"])
    assert outcome.code == 0
    assert outcome.problems[0].startswith("actor-0 did not stop in time and was killed")


def test_what_a_role_leaves_behind_is_ended(tmp_path, mark):
    outcome = run_small(tmp_path, "warm", 8.0, ["monitor=with_child"])
    assert outcome.code == 0
    assert processes(mark) == []


def test_an_error_in_the_launcher_stops_the_roles(tmp_path, mark):
    def fail(states):
        if all(state.status == "running" for state in states.values()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_small(tmp_path, "warm", 8.0, ["actor=patient", "monitor=patient"], on_tick=fail)
    assert "actor-0 ends: it was asked to stop." in (tmp_path / "logs/actor-0.log").read_text()
    assert processes(mark) == []


@pytest.mark.parametrize("start", ["warm", "spawn"])
def test_no_process_outlives_a_killed_launcher(tmp_path, mark, start):
    launcher = Launcher(tmp_path, "replay=patient", "actor=patient", "actor=stuck", "monitor=patient", start=start)
    assert len(processes(mark)) > 8  # launcher, roles, and a shell, an interpreter and sed for each node
    launcher.process.kill()
    launcher.process.wait()
    wait_until(lambda: not processes(mark), "all processes to be gone", seconds=10.0)


def test_a_launcher_killed_during_its_start_leaves_nothing(tmp_path, mark):
    command = [sys.executable, "-m", "tests.launch.small_program", str(tmp_path), "warm", "8", "actor=patient"]
    launcher = subprocess.Popen(command, start_new_session=True)
    wait_until(lambda: nodes_of(mark), "the first node")
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not processes(mark), "all processes to be gone", seconds=20.0)


def test_a_killed_role_ends_the_run(tmp_path, mark):
    launcher = Launcher(tmp_path, "replay=patient", "actor=patient", "actor=patient", "monitor=patient")
    os.kill(launcher.states["actor-1"]["pid"], signal.SIGKILL)
    code, outcome = launcher.end()
    assert code == 1
    assert str(outcome["failure"]).startswith("actor-1 was killed by SIGKILL")
    assert processes(mark) == []


def test_processes_of_one_learner_fall_and_rise_together(tmp_path, mark):
    """These don't notice each other's death, so the launcher ends them."""
    killed: list[int] = []

    class EnoughSeenError(Exception):
        pass

    def look(states):
        learners = [state for state in states.values() if state.role == "learner"]
        if not all(state.status == "running" for state in states.values()):
            return
        if not killed:
            killed.append(learners[1].pid)
            os.kill(learners[1].pid, signal.SIGKILL)
        elif all(state.restarts == 1 for state in learners):
            assert [state.restarts for state in states.values() if state.role != "learner"] == [0, 0]
            raise EnoughSeenError

    plays = ["actor=patient", "learner=patient", "learner=patient", "monitor=patient"]
    with pytest.raises(EnoughSeenError):
        run_small(tmp_path, "warm", 8.0, plays, on_tick=look, policy=RestartPolicy(most=1))
    for index in range(2):
        assert (tmp_path / f"logs/learner-{index}.log").read_text().count("starts as process") == 2


@pytest.mark.parametrize("start", ["warm", "spawn"])
def test_a_killed_supervisor_ends_the_run_and_its_role(tmp_path, mark, start):
    launcher = Launcher(tmp_path, "actor=patient", "monitor=patient", start=start)
    node_of("actor/0", mark).kill()
    code, outcome = launcher.end()
    assert code == 1
    assert "actor-0" in str(outcome["failure"])
    assert "Launchpad node 'actor/0'" in str(outcome["failure"])
    assert processes(mark) == []


def test_a_killed_warm_process_ends_the_run(tmp_path, mark):
    launcher = Launcher(tmp_path, "actor=patient", "monitor=patient")
    warm_of(mark).kill()
    code, outcome = launcher.end()
    assert code == 1
    assert "warm process" in str(outcome["failure"])
    assert processes(mark) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_cleanly(tmp_path, mark, number, code):
    launcher = Launcher(tmp_path, "replay=patient", "actor=patient", "monitor=patient")
    os.killpg(launcher.process.pid, number)  # as a terminal does it: the nodes get it too
    assert launcher.end() == (
        code,
        {"code": code, "reason": f"stopped by {signal.Signals(number).name}", "failure": "", "problems": []},
    )
    assert processes(mark) == []


def test_a_second_interrupt_hurries(tmp_path, mark):
    launcher = Launcher(tmp_path, "replay=patient", "actor=stuck", "monitor=patient", grace=1000.0)
    os.killpg(launcher.process.pid, signal.SIGINT)
    time.sleep(1.0)
    assert launcher.process.poll() is None  # control: it waits for the actor
    os.killpg(launcher.process.pid, signal.SIGINT)
    code, outcome = launcher.end()
    assert code == 130
    assert "actor-0 did not stop in time" in str(outcome["problems"])
    assert processes(mark) == []


@pytest.mark.slow
@pytest.mark.parametrize("start", ["warm", "spawn"])
def test_roles_compute_and_nodes_load_no_framework(tmp_path, mark, start, monkeypatch):
    """The one test with the full imports: several forks of one process each run Reverb and JAX."""
    monkeypatch.delenv("XLA_FLAGS")  # the tests' own asks for several devices
    plays = ["replay=computing", "actor=computing", "monitor=computing"]
    two = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    frameworks = ("jaxlib", "_pywrap_tensorflow", "libtensorflow_cc")
    loaded: dict[str, set[str]] = {"nodes": set(), "warm": set()}

    def look(states):
        if all(state.status == "running" for state in states.values()):
            for kind, group in ("nodes", nodes_of(mark)), ("warm", [warm_of(mark)] if start == "warm" else []):
                maps = "".join(Path(f"/proc/{process.pid}/maps").read_text() for process in group)
                assert maps or not group
                loaded[kind] |= {name for name in frameworks if name in maps}

    outcome = run_small(tmp_path, start, 8.0, plays, on_tick=look, modules=warm.MODULES, environments={"actor-0": two})
    assert outcome == (0, "it was enough", "", ())
    assert (tmp_path / "replay-0").read_text() == "replay-0: 42.0 cpu 1"
    assert (tmp_path / "actor-0").read_text() == "actor-0: 42.0 cpu 2"
    assert loaded["nodes"] == set()
    if start == "warm":
        assert "jaxlib" in loaded["warm"]  # control: loaded frameworks are seen
        assert "threads: roles forked from here may hang" not in (tmp_path / "logs/warm.log").read_text()
