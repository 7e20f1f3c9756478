"""Runs docs/new-agent.md in a folder outside the repository: its agent is checked, and learns, by its commands."""

import contextlib
import json
import os
import shlex
from pathlib import Path

import pytest
import yaml

from agents import contract
from tests.launch.nodes import finish, start
from tests.pages import Page, run_python
from tests.ports import free_port
from tests.replay.shards import eventually
from tests.source_tree import ROOT

PAGE = Page("new-agent.md")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    PAGE.write(tmp_path)
    return tmp_path


def command(module: str) -> list[str]:
    """The page's command that runs a module, without the word "python"."""
    found = [words for text in PAGE.commands if (words := shlex.split(text))[:3] == ["python", "-m", module]]
    assert len(found) == 1
    return found[0][1:]


def test_the_page_has_what_is_tested_here() -> None:
    assert list(PAGE.files) == ["my_package/qr_dqn.py"]
    assert len(PAGE.files["my_package/qr_dqn.py"].splitlines()) < 130
    assert len(PAGE.commands) == 3


@pytest.mark.slow
def test_its_agent_holds_to_the_contract(folder: Path) -> None:
    said = run_python(folder, *command("agents.contract"), timeout=240)
    assert f"{len(contract.CHECKS)} of {len(contract.CHECKS)} checks hold" in said


@pytest.mark.slow
def test_its_agent_learns_through_the_real_program(folder: Path) -> None:
    said = run_python(folder, *command("launch.local"), "run.seconds=110", timeout=240)
    assert "target return 475 reached by 3 evaluations in a row" in said
    run = folder / "runs" / "latest"
    assert (run / "curve.png").exists()
    kept = json.loads((run / "config.json").read_text())["agent_config"]
    assert (kept["quantiles"], kept["target_period"]) == (51, 100)  # its own number, and one of the preset


@pytest.mark.slow
def test_its_agent_learns_on_nodes_that_know_it_from_the_manifests(folder: Path, monkeypatch) -> None:
    assert " files of " in run_python(folder, *command("launch.kubernetes"), timeout=110)
    (config_map,) = yaml.safe_load_all((folder / "manifests/configmap.yaml").read_text())
    config = folder / "config.json"
    config.write_text(config_map["data"]["config.json"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    shards = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    roles = (("replay", 0), ("replay", 1), ("monitor", 0), ("learner", 0), ("actor", 0))
    nodes = [
        start(role, folder / f"{role}-{index}", f"--index={index}", f"--config={config}", f"--addresses={shards}")
        for role, index in roles
    ]

    def steps() -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(json.loads((folder / "monitor-0/status.json").read_text())["state"]["learner_steps"])
        return 0

    try:
        eventually(lambda: steps() > 100, 200)
    finally:
        ended = [finish(node) for node in reversed(nodes)]  # shards last
    assert [code for code, _ in ended] == [143] * len(nodes), "\n".join(output for _, output in ended)


@pytest.mark.slow
def test_control_that_climbs_its_loss_is_found(folder: Path) -> None:
    path = folder / "my_package/qr_dqn.py"
    descent, ascent = "follow_gradient(state, gradient,", "follow_gradient(state, jax.tree.map(jnp.negative, gradient),"
    code = path.read_text()
    assert code.count(descent) == 1
    path.write_text(code.replace(descent, ascent))
    with pytest.raises(AssertionError, match=r"must fall"):
        run_python(folder, *command("agents.contract"), timeout=240)
