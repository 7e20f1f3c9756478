"""Rendered runs: valid for Kubernetes, equal to what is kept, sized by the experiment, and refused when bad."""

import copy
import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from configs import serialization
from launch.cluster_run import LONGEST_NAME, Run
from launch.kubernetes import render, write
from launch.manifests import make_manifests
from launch.sizing import MIB, needs_of
from tests.launch.topologies import FORMATS, GOLDEN, REGENERATE, TOPOLOGIES, golden_files, make_run
from tests.source_tree import ROOT

VERSIONS = ("1.33", "1.37")  # the oldest with all that is used out of beta, and the newest known


def objects_of(run: Run) -> dict[tuple[str, str], dict[str, Any]]:
    texts = render(run, "kubernetes")
    documents = [
        each for name, text in texts.items() if name != "kustomization.yaml" for each in yaml.safe_load_all(text)
    ]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def templates_of(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """The pods' templates, of those objects that make pods."""
    return {name: each["spec"]["template"] for name, each in objects.items() if "template" in each.get("spec", {})}


def validate(document: dict[str, Any]) -> None:
    """Strictly; a kind without a schema, which the validator only warns of, is an error too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_object_is_valid(topology: str) -> None:
    config, overrides = TOPOLOGIES[topology]
    objects = objects_of(make_run(config, *overrides, name=topology))
    assert len(objects) == 13
    for document in objects.values():
        validate(document)


def test_control_the_validator_sees_a_wrong_field_and_an_unknown_kind() -> None:
    good = objects_of(make_run())[("Job", "run-actor")]
    wrong, unknown = copy.deepcopy(good), copy.deepcopy(good)
    wrong["spec"]["paralelism"] = 2
    unknown["kind"] = "Jobb"
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        validate(unknown)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_files_are_those_kept(topology: str) -> None:
    rendered = golden_files(topology)
    kept = {
        str(path.relative_to(GOLDEN)): path.read_text() for path in (GOLDEN / topology).rglob("*") if path.is_file()
    }
    assert rendered == kept, f"If the change is meant: {REGENERATE}, then read the difference that git shows."


def test_the_config_map_holds_the_experiment_and_every_pod_its_digest() -> None:
    run = make_run()
    objects = objects_of(run)
    config = objects[("ConfigMap", "run-config")]
    assert serialization.from_json(config["data"]["config.json"]) == run.experiment
    templates = templates_of(objects)
    assert len(templates) == 5
    assert {each["metadata"]["annotations"]["antiphon/config-digest"] for each in templates.values()} == {run.digest}


def memory(run: Run, kind: str, name: str) -> int:
    resources = objects_of(run)[(kind, name)]["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    return int(resources["requests"]["memory"].removesuffix("Mi"))


def test_a_shard_asks_for_more_where_its_tables_are_larger() -> None:
    single, double = make_run(), make_run("apex_cartpole", f"agent_config.replay.max_size={2 * max_size(make_run())}")
    added = (double.size.tables - single.size.tables) * 1.25 / MIB
    assert added > 1
    assert memory(double, "StatefulSet", "run-replay") - memory(single, "StatefulSet", "run-replay") == pytest.approx(
        added, abs=1
    )
    assert memory(double, "Job", "run-monitor") == memory(single, "Job", "run-monitor")


def max_size(run: Run) -> int:
    return int(run.experiment.agent_config.replay.max_size)


def test_a_shard_of_large_tables_has_longer_to_start_and_to_stop() -> None:
    run = make_run()
    small = needs_of("replay", run.experiment, run.size)
    large = needs_of("replay", run.experiment, dataclasses.replace(run.size, tables=run.size.tables + 53 * 100 * MIB))
    assert large.stop_seconds - small.stop_seconds == pytest.approx(400, abs=1)  # a quarter of 53 MiB/s
    assert large.start_seconds - small.start_seconds == pytest.approx(400, abs=1)


def test_every_pod_knows_how_long_it_has_to_stop() -> None:
    templates = templates_of(objects_of(make_run("apex_pong")))
    assert templates
    for name, template in templates.items():
        pod = template["spec"]
        said = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        assert said["ANTIPHON_STOP_SECONDS"] == str(pod["terminationGracePeriodSeconds"]), name


def test_eight_actors_in_a_pod_share_its_imports() -> None:
    one = make_run("apex_cartpole", "topology.actors=8")
    eight = make_run("apex_cartpole", "topology.actors=8", "topology.actors_per_pod=8")
    assert (one.actor_pods, eight.actor_pods) == (8, 1)
    assert memory(eight, "Job", "run-actor") < 8 * memory(one, "Job", "run-actor") / 3


def test_roles_with_devices_ask_for_gpus_and_others_for_none() -> None:
    config, overrides = TOPOLOGIES["accelerated"]
    objects = objects_of(make_run(config, *overrides))
    assert ("Job", "run-actor") not in objects
    asked = {
        name: each["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        for name, each in templates_of(objects).items()
    }
    job = objects["Job", "run-accelerated-actor"]["spec"]
    assert job["completions"] == 2
    assert asked.pop(("Job", "run-accelerated-actor")) == "1"  # each has one of devices.actor
    assert asked.pop(("Job", "run-learner")) == "2"
    assert set(asked.values()) == {None}
    two = ["learner.processes=2", "topology.accelerated_actors=1", "devices.actor=()"]
    run = make_run(config, *overrides, *two)
    assert needs_of("learner", run.experiment, run.size).gpus == 1
    assert needs_of("accelerated_actor", run.experiment, run.size).gpus == 0  # it acts on the CPU


def test_shards_without_checkpoints_have_no_volume() -> None:
    spec = objects_of(make_run("apex_cartpole", "shard.checkpoint_period=0"))[("StatefulSet", "run-replay")]["spec"]
    assert "volumeClaimTemplates" not in spec
    assert {"name": "run", "emptyDir": {}} in spec["template"]["spec"]["volumes"]


def test_without_an_evaluator_there_is_no_deployment() -> None:
    run = make_run("apex_cartpole", "topology.evaluators=0", "run.target_return=inf", "run.learner_steps=9")
    assert "deployment.yaml" not in make_manifests(run)


def test_every_role_is_on_every_format() -> None:
    for form in FORMATS:
        text = "".join(render(make_run(), form).values())
        for role in ("replay", "actor", "learner", "evaluator", "monitor"):
            assert f"--role={role}" in text, (form, role)


def test_the_script_of_slurm_is_bash() -> None:
    for topology in TOPOLOGIES:
        subprocess.run(["bash", "-n", GOLDEN / topology / "slurm" / "run.sbatch"], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "fix"), [("Apex_Pong", "apex-pong"), ("a" * (LONGEST_NAME + 1), "a" * LONGEST_NAME), ("9", "run")]
)
def test_names_that_dns_does_not_take_are_refused(name: str, fix: str) -> None:
    with pytest.raises(ValueError, match=rf"--name=.*Set --name={fix}\.$"):
        dataclasses.replace(make_run(), name=name)


def test_the_longest_name_leaves_valid_labels() -> None:
    run = dataclasses.replace(make_run(), name="a" * LONGEST_NAME)
    assert max(len(f"{name}-0123456789-abcde") for _, name in objects_of(run)) <= 63


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ValueError, match=r"--output=.*--overwrite"):
        write(tmp_path, {"a.yaml": ""}, overwrite=False)
    write(tmp_path, {"a.yaml": ""}, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "mine"]
    with pytest.raises(ValueError, match="is a file"):
        write(tmp_path / "mine", {}, overwrite=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("topology.shards=0", "topology.shards=0 must be at least 1"),
        ("topology.actors=9 topology.actors_per_pod=4", "Set topology.actors=8."),
        ("topology.actor=9", "Did you mean"),
        ("learner.processes=3", "learner.batch_size=64 doesn't divide over the learner's 3 processes"),
        ("learner.processes=2 devices.learner=0,1,2", "devices.learner=0,1,2"),
    ],
)
def test_the_command_refuses_by_field(words: str, said: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "launch.kubernetes",
        "--config=apex_cartpole",
        "--image=i",
        f"--output={tmp_path}/o",
    ]
    ended = subprocess.run([*command, *words.split()], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert not (tmp_path / "o").exists()


def test_importing_the_renderer_loads_no_jax() -> None:
    code = (
        "import sys, launch.kubernetes; sys.exit(any(name in sys.modules for name in ('jax', 'tensorflow', 'reverb')))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=110)
