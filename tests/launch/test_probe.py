import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from launch.liveness import WatchedStop
from launch.probe import complaint, container_start
from tests.launch.programs import REPOSITORY


def touch(path, age=0.0):
    path.touch()
    os.utime(path, (time.time() - age,) * 2)


def test_a_node_is_live_while_its_beat_is_young(tmp_path):
    assert "no role has begun" in complaint("live", tmp_path, 60)
    touch(tmp_path / "heartbeat-actor-3")
    assert complaint("live", tmp_path, 60) == ""
    assert complaint("started", tmp_path, 60) == ""
    touch(tmp_path / "heartbeat-actor-4", age=100)
    assert complaint("live", tmp_path, 60) == "heartbeat-actor-4 is 100 s old, over 60 s"
    assert complaint("live", tmp_path, 200) == ""


def test_a_shard_is_ready_while_its_canary_sings_and_live_without(tmp_path):
    touch(tmp_path / "heartbeat-replay-0")
    assert complaint("ready", tmp_path, 60) == complaint("started", tmp_path, 60) != ""
    touch(tmp_path / "ready-replay-0")
    assert complaint("ready", tmp_path, 60) == ""
    touch(tmp_path / "ready-replay-0", age=100)
    assert "ready-replay-0 is 100 s old" in complaint("ready", tmp_path, 60)
    assert complaint("live", tmp_path, 60) == ""


def test_what_a_container_before_this_one_left_is_no_sign_of_life(tmp_path):
    touch(tmp_path / "heartbeat-replay-0", age=20)
    touch(tmp_path / "ready-replay-0", age=10)
    assert complaint("ready", tmp_path, 60, since=time.time() - 30) == ""
    assert "no role has begun" in complaint("ready", tmp_path, 60, since=time.time() - 5)


def test_process_1_began_in_the_past():
    assert 0 < container_start() < time.time()
    assert container_start() == pytest.approx(psutil.Process(1).create_time(), abs=2)


@pytest.mark.parametrize(("age", "code"), [(0, 0), (1000, 1)])
def test_the_command_answers_by_its_exit_code_and_imports_next_to_nothing(tmp_path, age, code):
    touch(tmp_path / "heartbeat-learner-0", age=age)
    command = [sys.executable, "-X", "importtime", "-m", "launch.probe", "live", f"--run_directory={tmp_path}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert ("not live: heartbeat-learner-0" in done.stdout) == bool(code)
    assert not any(f"| {name}" in done.stderr.replace("  ", " ") for name in ("numpy", "absl", "reverb", "jax"))


def test_a_look_at_the_stop_event_is_a_beat_and_waiting_for_it_goes_on_to_be_one():
    stop = WatchedStop(threading.Event())
    assert not stop.take()
    assert not stop.is_set()
    assert stop.take()
    assert not stop.take()  # once
    seen: list[bool] = []

    def watch() -> None:
        time.sleep(0.3)
        seen.extend([stop.take(), stop.take()])
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert stop.wait(30)
    watcher.join()
    assert seen == [True, True]


def test_other_threads_that_look_are_no_sign_of_life():
    stop = WatchedStop(threading.Event())
    thread = threading.Thread(target=lambda: (stop.is_set(), stop.wait(0.01)))
    thread.start()
    thread.join()
    assert not stop.take()
