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


STEPS = 400


def starts_of(log: Path) -> list[int]:
    return [int(pid) for pid in re.findall(r"starts as process (\d+)", log.read_text())] if log.exists() else []


@pytest.mark.slow
def test_two_processes_learn_as_one_fall_and_rise_together_and_end_cleanly(tmp_path: Path) -> None:
    overrides = ("learner.processes=2", f"run.learner_steps={STEPS}", "run.target_return=inf", "topology.evaluators=0",
                 "topology.shards=1", "topology.actors=1")  # fmt: skip
    signals = [signal.SIGTERM, signal.SIGKILL]  # for learner-1, each as soon as it has learned
    logs = [tmp_path / "latest" / "logs" / f"learner-{index}.log" for index in range(2)]
    with open(tmp_path / "output.txt", "w+") as output:
        launcher = subprocess.Popen(
            command_line("impala_catch", tmp_path, *overrides),
            cwd=REPOSITORY, env=environment() | {"XLA_FLAGS": DEVICES}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while launcher.poll() is None:  # pytest-timeout ends it
            sent = 2 - len(signals)
            learning = [len(starts_of(log)) == sent + 1 == log.read_text().count("First learner step") for log in logs]
            if signals and all(learning):
                members = [psutil.Process(starts_of(log)[-1]) for log in logs]
                os.kill(members[1].pid, signals.pop(0))
                # Both at once, not when JAX's heartbeats have been missing for 100 s.
                assert psutil.wait_procs(members, timeout=30)[1] == []
            time.sleep(0.1)
        output.seek(0)
        text = output.read()
    assert launcher.returncode == 0, text
    assert signals == [], "it ended too soon"
    assert "did not stop in time" not in text
    assert "learner-1 was killed by SIGKILL" in text
    for index, log in enumerate(logs):
        said = log.read_text()
        assert said.count(f"learner-{index} ends: it was asked to stop.") == 1  # though only one of them was
        assert len(re.findall(r"Restored the learner at step [1-9]", said)) == 2
        assert f"learner-{index} ends: {STEPS} learner steps reached" in said
    assert "learner-1 is gone, so learner-0 ends too" in logs[0].read_text()
    status = read_status(tmp_path / "latest" / "status.json")
    assert status is not None
    assert status.state.learner_steps == STEPS
    assert [role.restarts for role in status.state.roles if role.name.startswith("learner-")] == [2, 2]
    assert (tmp_path / "latest" / "checkpoints" / "learner" / f"{STEPS}.json").exists()
