"""Runs docs/new-environment.md: files are written where their first line says, scripts run, commands are read."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from configs.experiment import Experiment
from configs.overrides import apply_overrides

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs/new-environment.md").read_text(), re.MULTILINE | re.DOTALL)
FILES = {code.split("\n")[0].removeprefix("# "): code for language, code in BLOCKS if language == "python"}
SCRIPTS = [path for path in FILES if "/" not in path]
COMMANDS = [code for language, code in BLOCKS if language == "bash"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, code in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code)
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    """Runs Python in the folder, with Antiphon installed as far as PYTHONPATH can."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_page_has_what_is_tested_here() -> None:
    assert len(SCRIPTS) == 3
    assert len(COMMANDS) == 4
    assert all(re.fullmatch(r"(my_package/)?\w+\.py", path) for path in FILES)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(folder: Path, script: str) -> None:
    run(folder, script)


def test_a_script_that_is_wrong_is_noticed(folder: Path) -> None:
    """The control: the environment of the page pays for right guesses only."""
    code = FILES["look.py"]
    assert "argmax" in code
    (folder / "look.py").write_text(code.replace("argmax", "argmin"))
    with pytest.raises(AssertionError, match="AssertionError"):
        run(folder, "look.py")


@pytest.mark.parametrize("command", COMMANDS)
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
    assert run(folder, "-c", code).strip() == "[True, True]"
