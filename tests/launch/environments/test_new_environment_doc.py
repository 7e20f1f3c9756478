"""Runs docs/new-environment.md: files are written where their first line says, scripts run, commands are read."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from configs.overrides import apply_overrides
from configs.presets import preset
from launch import preflight
from tests.pages import Page, run_python

PAGE = Page("new-environment.md")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    PAGE.write(tmp_path)
    return tmp_path


def test_the_page_has_what_is_tested_here() -> None:
    assert len(PAGE.scripts) == 3
    assert len(PAGE.commands) == 4
    assert all(re.fullmatch(r"(my_package/)?\w+\.py", path) for path in PAGE.files)


@pytest.mark.parametrize("script", PAGE.scripts)
def test_scripts_run(folder: Path, script: str) -> None:
    run_python(folder, script)


def test_a_script_that_is_wrong_is_noticed(folder: Path) -> None:
    """The control: the environment of the page pays for right guesses only."""
    code = PAGE.files["look.py"]
    assert "argmax" in code
    (folder / "look.py").write_text(code.replace("argmax", "argmin"))
    with pytest.raises(AssertionError, match="AssertionError"):
        run_python(folder, "look.py")


def check_command(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run checks before it starts: the environment can be made, and the agent takes what it shows and wants."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "launch.local"]
    assert words[4] == "--set"
    monkeypatch.syspath_prepend(folder)
    try:
        preflight.check(apply_overrides(preset(words[3].removeprefix("--config=")), words[5:]), folder)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
            del sys.modules[name]


@pytest.mark.parametrize("command", PAGE.commands)
def test_commands_can_run(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_command(folder, command, monkeypatch)


def test_an_agent_for_other_actions_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    (command,) = (text for text in PAGE.commands if "dm_env" in text)
    with pytest.raises(ValueError, match="chooses among discrete actions"):
        check_command(folder, command.replace("ppo_pendulum", "impala_cartpole"), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("command", [PAGE.commands[0], *PAGE.commands[2:]])
def test_the_real_program_trains_on_them(folder: Path, command: str) -> None:
    """A Gymnasium environment, one with a dict, and one of dm_env: some updates on each."""
    words = shlex.split(command)[1:]
    said = run_python(folder, *words, "run.learner_steps=150", "run.seconds=60", timeout=240)
    state = json.loads((folder / "runs" / "latest" / "status.json").read_text())["state"]
    assert state["learner_steps"] >= 20, said
    assert state["training_return"] is not None, said
