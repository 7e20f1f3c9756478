"""Real nodes behind HAProxy, as deploy/haproxy.cfg has it: actors and evaluator know its address and no shard's."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.cluster_run import Run
from launch.kubernetes import render
from tests.launch.nodes import finish, start
from tests.launch.topologies import make_run
from tests.ports import free_port, is_listening
from tests.replay.shards import eventually
from tests.source_tree import ROOT

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs Debian's package haproxy")


@contextlib.contextmanager
def balancer(shards: list[str]) -> Iterator[str]:
    port = free_port()
    environment = {"BALANCER": f"127.0.0.1:{port}", "SHARD_0": shards[0], "SHARD_1": shards[1]}
    command = ["haproxy", "-db", "-f", str(ROOT / "deploy/haproxy.cfg")]
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        eventually(lambda: is_listening(port), 10)
        yield environment["BALANCER"]
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.slow
@needs_haproxy
def test_actors_learn_and_outlive_a_shard_behind_one_address(tmp_path):
    shards = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    fields = ("--set", "topology.actors=2", "shard.checkpoint_period=2", "run.target_return=inf")
    nodes: dict[str, subprocess.Popen[str]] = {}

    def launch(role: str, index: int, *options: str) -> None:
        common = ("--config=apex_cartpole", f"--addresses={','.join(shards)}", f"--index={index}")
        nodes[f"{role}-{index}"] = start(role, tmp_path / f"{role}-{index}", *common, *options, *fields)

    def state() -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            content: dict[str, Any] = json.loads((tmp_path / "monitor-0/status.json").read_text())["state"]
            return content
        return {}

    def inserts() -> list[int]:
        return [shard["inserts"] for shard in state().get("shards", [])]

    def versions() -> dict[str, int | None]:
        return {role["name"]: role["version"] for role in state().get("roles", [])}

    with balancer(shards) as address, contextlib.ExitStack() as stack:
        stack.callback(lambda: [finish(node) for node in nodes.values() if node.poll() is None])
        for index in range(2):
            launch("replay", index)
        for role in ("monitor", "learner"):
            launch(role, 0)
        for role, index in (("actor", 0), ("actor", 1), ("evaluator", 0)):
            launch(role, index, f"--balancer={address}")
        eventually(lambda: state().get("evaluation") is not None, 150)  # weights and metrics come through
        eventually(lambda: all(count > 600 for count in inserts()), 90)
        eventually(lambda: all((versions().get(f"actor-{index}") or 0) > 0 for index in range(2)), 30)

        nodes["replay-1"].kill()
        _kill_children(tmp_path / "replay-1")
        finish(nodes["replay-1"], ask=False)
        eventually(lambda: bool(state()["shards"][1]["error"]), 30)
        before, steps = inserts()[0], state()["learner_steps"]
        launch("replay", 1)
        eventually(lambda: not state()["shards"][1]["error"], 90)
        back = inserts()[1]
        eventually(lambda: inserts()[0] > before and inserts()[1] > back + 256 and state()["learner_steps"] > steps, 90)
        assert nodes["actor-0"].poll() is None
        assert nodes["actor-1"].poll() is None


def _kill_children(directory: Path) -> None:
    """The role of a node that was killed ends by itself; not waited for here."""
    for log in directory.glob("logs/replay-*.log"):
        pid = int(log.read_text().rpartition("starts as process ")[2].partition(".")[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_renderers_give_the_balancer_to_whom_any_shard_serves():
    plain = make_run()
    run = Run(name=plain.name, image=plain.image, experiment=plain.experiment, size=plain.size, balancer="haproxy:8000")
    for form in ("kubernetes", "compose", "slurm"):
        before, after = "\n".join(render(plain, form).values()), "\n".join(render(run, form).values())
        assert "ANTIPHON_BALANCER" not in before
        assert after.count("haproxy:8000") >= 2, form  # actors and evaluator
    with pytest.raises(ValueError, match="--balancer has 'haproxy', which is no host:port"):
        Run(name="run", image="x", experiment=plain.experiment, size=plain.size, balancer="haproxy")
