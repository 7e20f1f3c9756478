"""The planner as a person runs it: real roles, measured for some seconds."""

import re
import subprocess
import sys

import psutil
import pytest

from tests.launch.programs import REPOSITORY, environment


def run_plan(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "launch.plan", *arguments],
        cwd=REPOSITORY,
        env={**environment(), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("config", ["apex_cartpole", "impala_catch"])
def test_it_says_what_parts_cost_and_what_bounds_the_whole(config):
    done = run_plan(f"--config={config}", "--seconds=6", "--learner_steps_per_second=1e5")
    assert done.returncode == 0, done.stderr
    for part in ("actor: environment step", "learner: learner step", "shard: item written", "shard: item read"):
        row = re.search(rf"^{part} +([\d.,]+)", done.stdout, re.MULTILINE)
        assert row is not None, done.stdout
        assert 0 < float(row[1]) < 1000
    (bounds,) = re.findall(r"^bounded by .*$", done.stdout, re.MULTILINE)
    assert "the shards' cores" in bounds or "the network of" in bounds  # a hundred thousand updates a second
    assert not [each for each in psutil.Process().children(recursive=True) if "launch" in " ".join(each.cmdline())]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config=apex_pon"], "Did you mean apex_pong"),
        (["--config=apex_cartpole", "--set", "learner.batchsize=3"], "batch_size"),
        (["--config=apex_cartpole", "--gigabits=0"], "gigabits"),
    ],
)
def test_bad_input_is_refused_by_its_name(arguments, said):
    done = run_plan(*arguments)
    assert done.returncode not in (0, -9)
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
