"""Runs the commands of docs/cluster.md that need no cluster."""

import shlex
from pathlib import Path

import pytest

from tests.pages import Page, run_python

FILES = "manifests/kustomization.yaml", "compose/compose.yaml", "slurm/run.sbatch", "balanced/kustomization.yaml"
COMMANDS = [shlex.split(text) for text in Page("cluster.md").commands]


def test_the_page_has_what_is_tested_here() -> None:
    assert [command[:3] for command in COMMANDS] == [["python", "-m", "launch.kubernetes"]] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "file"),
    list(zip(COMMANDS, FILES, strict=True)),
)
def test_its_command_renders(command: list[str], file: str, tmp_path: Path) -> None:
    assert " files of " in run_python(tmp_path, *command[1:], timeout=110)
    assert (tmp_path / file).stat().st_size > 0
