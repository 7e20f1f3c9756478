"""The node as a person or a cluster runs it: its command, in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from configs import serialization
from configs.presets import preset
from launch import node
from launch.probe import complaint
from tests.launch.nodes import finish, start
from tests.launch.programs import REPOSITORY, environment
from tests.ports import free_port
from tests.replay.shards import eventually

ENVIRON = {"ANTIPHON_CONFIG": "apex_cartpole", "ANTIPHON_ADDRESSES": "a:1,b:2", "ANTIPHON_RUN_DIRECTORY": "/nowhere"}


@pytest.mark.parametrize(
    ("role", "given", "environ", "host", "index"),
    [
        ("actor", "7", {"ANTIPHON_INDEX": "1"}, "x-2", 7),
        ("actor", None, {"ANTIPHON_INDEX": "1", "JOB_COMPLETION_INDEX": "3"}, "x-2", 1),
        ("actor", None, {"JOB_COMPLETION_INDEX": "3", "SLURM_PROCID": "4"}, "x-2", 3),
        ("actor", None, {"SLURM_PROCID": "4"}, "x-2", 4),
        ("replay", None, {}, "run-replay-12.run-replay.default", 12),
        ("learner", None, {}, "learner-x8k2p", 0),
    ],
)
def test_a_node_knows_its_index(role, given, environ, host, index):
    assert node.index_of(role, given, environ, host) == index


def test_an_index_that_nothing_says_or_that_is_none_is_refused():
    with pytest.raises(ValueError, match="--index is missing for role actor"):
        node.index_of("actor", None, {}, "vm")
    with pytest.raises(ValueError, match="SLURM_PROCID='x' must be a whole number"):
        node.index_of("actor", None, {"SLURM_PROCID": "x"}, "vm-1")


def spec_of(index: int, actors: int) -> node.NodeSpec:
    experiment = preset("apex_cartpole")  # two actors
    return node.NodeSpec(
        role="actor", index=index, actors=actors, experiment=experiment, addresses=("a:1", "b:2"), run_directory=Path()
    )


def test_a_node_of_several_actors_plays_a_range_of_them():
    assert [each.name for each in spec_of(0, 2).assignments()] == ["actor-0", "actor-1"]
    assert [each.name for each in spec_of(0, 3).assignments()] == ["actor-0", "actor-1"]  # there are two in all
    assert [each.name for each in spec_of(1, 2).assignments()] == ["actor-2", "actor-3"]  # scaled beyond them


def test_a_config_file_is_as_good_as_a_preset(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(serialization.to_json(preset("ppo_catch")))
    assert node.load_experiment(str(path), []) == preset("ppo_catch")
    assert node.load_experiment(str(path), ["run.seed=7"]).run.seed == 7
    with pytest.raises(ValueError, match=r"none\.json can't be read"):
        node.load_experiment(str(tmp_path / "none.json"), [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--role=actor", "--index=0", "--addresses=a:1"], "--addresses names 1 shards, and topology.shards=2"),
        (["--role=actor", "--index=0", "--addresses=a:1,b"], "--addresses has 'b', which is no host:port"),
        (["--role=actor", "--index=0", "--balancer=b"], "--balancer has 'b', which is no host:port"),
        (["--role=learner", "--balancer=b:1"], "--balancer=b:1 can't be for role learner"),
        (["--role=replay", "--index=2"], "--index=2 of a replay shard must be below 2"),
        (["--role=actor", "--index=0", "--actors_per_pod=0"], "--actors_per_pod=0 must be at least 1"),
        (["--role=actor", "--index=0", "--config=apex_cartpol"], "Did you mean apex_cartpole"),
        (["--role=actor", "--index=0", "--set", "learner.batchsize=3"], "batch_size"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused_before_anything_heavy_is_imported(arguments, words):
    code = (
        "import runpy, sys; sys.argv[0] = 'node'\n"
        "try: runpy.run_module('launch.node', run_name='__main__')\n"
        "finally: assert not {'jax', 'reverb', 'tensorflow'} & set(sys.modules), 'imported'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        env={**environment(), **ENVIRON},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "AssertionError" not in done.stderr


def test_a_shard_becomes_ready_and_ends_cleanly(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    options = ("--index=0", "--config=apex_cartpole", f"--addresses={address}", "--set", "topology.shards=1")
    process = start("replay", tmp_path, *options)
    try:
        eventually(lambda: not complaint("ready", tmp_path, 60) or process.poll() is not None, 90)
        assert process.poll() is None
        assert complaint("live", tmp_path, 60) == ""
    finally:
        code, output = finish(process)
    assert code == 143, output
    assert "Serving replay-0" in output  # the role's log is the container's
    assert "replay-0 is over: stopped by SIGTERM" in output


def test_actors_of_one_node_are_forked_and_restarted_one_by_one(tmp_path):
    options = ("--index=1", "--config=apex_cartpole", "--addresses=127.0.0.1:9", "--actors_per_pod=2", "--set")
    process = start("actor", tmp_path, *options, "topology.shards=1", "topology.actors=4")
    beats = [tmp_path / f"heartbeat-actor-{index}" for index in (2, 3)]
    try:
        eventually(lambda: all(beat.exists() for beat in beats) or process.poll() is not None, 90)
        log = tmp_path / "logs/actor-2.log"
        first = int(log.read_text().partition("starts as process ")[2].partition(".")[0])
        os.kill(first, signal.SIGKILL)
        eventually(lambda: log.read_text().count("starts as process") == 2, 60)
    finally:
        code, output = finish(process)
    assert code == 143, output
    assert "actor-2 was killed by SIGKILL" in output
    assert "actor-3 | " in output
    assert output.count("actor-3 starts as process") == 1


def test_a_role_that_fails_is_the_nodes_failure(tmp_path):
    port = free_port()
    options = ("--index=0", "--config=apex_cartpole", f"--addresses=127.0.0.1:{port}", "--set", "topology.shards=1")
    code, output = finish(start("replay", tmp_path, *options, "learner.publish_period=0"), ask=False)
    assert code == 1, output
    assert "learner.publish_period=0 must be at least 1" in output


def test_no_flags_are_defined_by_the_import():
    assert "actors_per_pod" not in flags.FLAGS
