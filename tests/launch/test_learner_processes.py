"""A learner of several processes, through the real program."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from launch.run_state import read_status
from tests.launch.programs import REPOSITORY, command_line, environment

DEVICES = "--xla_force_host_platform_device_count=2"  # in each process


def pid_of(log: Path) -> int:
    return int(re.findall(r"starts as process (\d+)", log.read_text())[-1])


@pytest.mark.slow
def test_two_processes_learn_as_one_survive_a_death_and_end_cleanly(tmp_path: Path) -> None:
    overrides = ("learner.processes=2", "run.learner_steps=400", "learner.checkpoint_period=1", "run.target_return=inf",
                 "topology.evaluators=0", "topology.shards=1", "topology.actors=1")  # fmt: skip
    with open(tmp_path / "output.txt", "w+") as output:
        launcher = subprocess.Popen(
            command_line("impala_catch", tmp_path, *overrides),
            cwd=REPOSITORY, env=environment() | {"XLA_FLAGS": DEVICES}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        logs = tmp_path / "latest" / "logs"
        killed = None
        while launcher.poll() is None:  # pytest-timeout ends it
            if killed is None and list((tmp_path / "latest" / "checkpoints" / "learner").glob("*.json")):
                killed = pid_of(logs / "learner-1.log")
                os.kill(killed, signal.SIGKILL)
                fell = pid_of(logs / "learner-0.log")
                psutil.wait_procs([psutil.Process(fell)] if psutil.pid_exists(fell) else [], timeout=20)
                assert not psutil.pid_exists(fell)  # at once, not when heartbeats have been missing for 100 s
            time.sleep(0.1)
        output.seek(0)
        text = output.read()
    assert launcher.returncode == 0, text
    assert killed, "it ended before its first checkpoint"
    assert "learner-1 was killed by SIGKILL" in text
    assert "learner-1 is gone, so learner-0 ends too" in (logs / "learner-0.log").read_text()
    for index in range(2):
        log = (logs / f"learner-{index}.log").read_text()
        assert re.search(r"Restored the learner at step [1-9]", log)
        assert f"learner-{index} ends: 400 learner steps reached" in log
    status = read_status(tmp_path / "latest" / "status.json")
    assert status is not None
    assert status.state.learner_steps == 400
    assert [role.restarts for role in status.state.roles if role.name.startswith("learner-")] == [1, 1]
    assert sorted(path.name for path in (tmp_path / "latest" / "checkpoints" / "learner").glob("400*")) == [
        "400",
        "400.json",
    ]
