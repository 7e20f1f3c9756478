"""A rendered run as containers: learns, in whatever order it starts, and heals after faults of its network and nodes.

`make test-cluster` builds the image and runs this; it needs podman, as root, and about 5 GB of memory.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.overrides import apply_overrides
from configs.presets import preset
from launch.cluster_run import Run
from launch.sizing import size_of
from tests.cluster.containers import Cluster, podman, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.big]

IMAGE = os.environ.get("ANTIPHON_IMAGE", "localhost/antiphon")
START_SECONDS = 200.0  # for containers to import everything, all at once on a busy machine
HEAL_SECONDS = 30.0 * 5  # what is asked for is 30; a machine that others use may be five times as slow
LEARN_SECONDS = 400.0

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    made: list[Cluster] = []

    def make(name: str, *overrides: str) -> Cluster:
        topology = [
            "topology.shards=2",
            "topology.actors=3",
            "shard.checkpoint_period=5",
            "learner.checkpoint_period=5",
        ]
        experiment = apply_overrides(preset("apex_cartpole"), [*topology, *overrides])
        tmp_path.chmod(0o755)
        for parent in tmp_path.parents[:3]:  # pytest's own are for the user alone, and the containers' is another
            parent.chmod(parent.stat().st_mode | 0o055)
        run = Run(name=name, image=IMAGE, experiment=experiment, size=size_of(experiment))
        made.append(Cluster(run, tmp_path))
        return made[-1]

    yield make
    for cluster in made:
        cluster.remove()


def names_of(cluster: Cluster, *roles: str) -> list[str]:
    return [pod.name for role in roles for pod in cluster.named(role)]


def state_of(cluster: Cluster) -> dict[str, Any]:
    state: dict[str, Any] = cluster.status().get("state", {})
    return state


def shard(cluster: Cluster, index: int) -> dict[str, Any]:
    shards: list[dict[str, Any]] = state_of(cluster).get("shards", [])
    return next((each for each in shards if each["index"] == index), {})


def steps(cluster: Cluster) -> int:
    return int(state_of(cluster).get("learner_steps", 0))


def record(values: dict[str, Any]) -> None:
    """Says what was measured; appends it to $ANTIPHON_FIGURES where that is set."""
    line = json.dumps(values)
    print(line)
    if path := os.environ.get("ANTIPHON_FIGURES"):
        with open(path, "a") as file:
            file.write(line + "\n")


def test_it_learns_whatever_starts_first(make_cluster):
    cluster = make_cluster("learns", "learner.processes=2")
    shards = names_of(cluster, "replay")
    others = names_of(cluster, "monitor", "evaluator", "actor", "learner")
    actor, (monitor,) = names_of(cluster, "actor")[0], names_of(cluster, "monitor")
    cluster.start(*others)
    wait_for("a word on names", lambda: "DNS doesn't know them yet" in cluster.log(actor), START_SECONDS, cluster)
    assert shards[0] in cluster.log(actor)
    began = time.monotonic()
    cluster.start(*reversed(shards))
    wait_for("both shards ready", lambda: all(cluster.probe(name, "ready") for name in shards), START_SECONDS, cluster)
    wait_for("learner steps", lambda: steps(cluster) > 0, START_SECONDS, cluster)
    first = {name: cluster.bytes_of(name) for name in cluster.pods}
    marked, before = time.monotonic(), state_of(cluster)
    moved: dict[str, Any] = {}

    def over() -> bool:
        try:
            counted = {name: cluster.bytes_of(name) for name in cluster.pods}
        except subprocess.CalledProcessError:  # with the monitor its network ended
            counted = {}
        if cluster.exit_code(monitor) is not None:
            return True
        if counted:
            moved.update({"seconds": time.monotonic() - marked, "state": state_of(cluster), "bytes": counted})
        return False

    wait_for("the target return", over, LEARN_SECONDS, cluster)
    assert cluster.exit_code(monitor) == 0
    assert "target return 475 reached" in cluster.status()["reason"]
    stop_all(cluster, *(name for name in cluster.pods if name != monitor))
    record(
        {
            "learned_s": time.monotonic() - began,
            "environment_steps": moved["state"]["environment_steps"] - before["environment_steps"],
            "learner_steps": moved["state"]["learner_steps"] - before["learner_steps"],
            "policy_lag": moved["state"]["policy_lag"],
            "weights_delay_s": moved["state"]["weights_delay"],
            "actors_waiting": moved["state"]["actors_waiting"],
            "learner_waiting": moved["state"]["learner_waiting"],
            "seconds": moved["seconds"],
            "received_sent": {
                name: [after - earlier for after, earlier in zip(moved["bytes"][name], first[name], strict=True)]
                for name in cluster.pods
            },
        }
    )


def test_it_heals(make_cluster):
    cluster = make_cluster("heals", "run.target_return=inf")
    replay, actors = names_of(cluster, "replay"), names_of(cluster, "actor")
    (learner,), (monitor,) = names_of(cluster, "learner"), names_of(cluster, "monitor")
    cluster.start(*cluster.pods)
    wait_for("learner steps", lambda: steps(cluster) > 0, START_SECONDS, cluster)
    wait_for("a checkpoint of the learner", lambda: checkpointed(cluster, learner), START_SECONDS, cluster)

    cluster.lose(replay[0])
    wait_for("a word on the shard", lambda: bool(shard(cluster, 0).get("error")), HEAL_SECONDS, cluster)
    wait_for("its name in the log", lambda: "replay-0 doesn't answer" in cluster.log(monitor), 60, cluster, [monitor])
    cluster.start(replay[0])
    started = wait_for("ready", lambda: cluster.probe(replay[0], "ready"), START_SECONDS, cluster, replay)
    record({"fault": "a shard is replaced", "ready_s": started, "healed_s": healed(cluster)})

    with cluster.cut(actors[1], replay[1]):
        wait_for("a word on the cut", lambda: replay[1] in cluster.log(actors[1]), HEAL_SECONDS, cluster, actors)
        time.sleep(10)  # long enough for connections to be given up
        assert cluster.exit_code(actors[1]) is None
        assert cluster.probe(actors[1], "live")
    record({"fault": "a cut between an actor and a shard", "healed_s": healed(cluster)})

    before = steps(cluster)
    cluster.lose(learner)
    cluster.start(learner)
    started = wait_for("started", lambda: cluster.probe(learner, "started"), START_SECONDS, cluster, [learner])
    wait_for("learner steps", lambda: steps(cluster) > before, HEAL_SECONDS, cluster, [learner])
    assert "Restored the learner at step" in cluster.log(learner)
    record({"fault": "the learner is lost", "ready_s": started, "healed_s": healed(cluster)})

    stop_all(cluster, *cluster.pods)


def stop_all(cluster: Cluster, *names: str) -> None:
    """Stops containers as Kubernetes does, and expects each to end by that and by nothing else."""
    codes = cluster.stop(*names)
    wrong = {name: code for name, code in codes.items() if code != 128 + signal.SIGTERM}
    assert not wrong, "\n".join(f"--- {name}, exit code {code}\n{cluster.log(name)}" for name, code in wrong.items())


def checkpointed(cluster: Cluster, learner: str) -> bool:
    return bool(podman("exec", learner, "ls", "/var/lib/antiphon/checkpoints/learner", check=False))


def healed(cluster: Cluster) -> float:
    """Seconds until every shard takes in and gives, every actor acts and the learner learns."""
    roles = {role["name"]: role["time"] for role in state_of(cluster)["roles"]}
    first, counts = steps(cluster), {index: shard(cluster, index).get("inserts", 0) for index in range(2)}
    now = time.time()

    def all_move() -> bool:
        state = state_of(cluster)
        spoke = {role["name"]: role["time"] for role in state["roles"]}
        return (
            not any(each["error"] for each in state["shards"])
            and all(shard(cluster, index).get("inserts", 0) > count for index, count in counts.items())
            and steps(cluster) > first
            and all(spoke[name] > now for name in roles if name.startswith(("actor-", "learner-")))
        )

    return wait_for("healing", all_move, HEAL_SECONDS, cluster)
