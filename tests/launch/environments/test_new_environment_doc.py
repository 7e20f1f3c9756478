"""Runs docs/new-environment.md: files are written where their first line says, scripts run, commands are read."""

import re
import shlex
from pathlib import Path

import pytest

from configs.experiment import Experiment
from configs.overrides import apply_overrides
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


@pytest.mark.parametrize("command", PAGE.commands)
def test_commands_name_environments_that_can_be_made(folder: Path, command: str) -> None:
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "launch.local"]
    overrides = words[words.index("--set") + 1 :]
    environment = apply_overrides(Experiment(name="doc", agent="impala", agent_config=None), overrides).environment
    code = (
        "from configs.experiment import EnvironmentConfig\n"
        "from launch.environments.factory import make_environments\n"
        f"print(make_environments({environment!r}, 2, 0).reset().first.tolist())"
    )
    assert run_python(folder, "-c", code).strip() == "[True, True]"
