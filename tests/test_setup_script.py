"""The set-up script where it can't succeed, and where nothing is to be done. That it succeeds, every checkout shows."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT

TOOLS = ("sh", "cat", "dirname", "uname", "sha256sum", "rm", "mkdir", "date", "env", "bash", "sed", "flock")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the script needs, and a bin/ with what every system has but no Python."""
    for name in ("scripts", "requirements.lock", "pyproject.toml", ".python-version"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def setup(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "scripts/setup.sh"], cwd=checkout, capture_output=True, text=True, timeout=60,
        env={"PATH": str(checkout / "bin"), "HOME": str(checkout), **environ},
    )  # fmt: skip


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_machine_without_python_is_told_how_to_get_one(checkout: Path):
    done = setup(checkout)
    assert done.returncode == 1
    for words in ("Python 3.10 was not found", "pyenv install 3.10", "make setup PYTHON="):
        assert words in done.stderr
    assert not (checkout / ".venv").exists()


def test_pyenv_shim_without_that_version_is_passed_over(checkout: Path):
    executable(checkout / "bin" / "python3.10", "echo \"pyenv: version '3.10' is not installed\" >&2; exit 127")
    assert "Python 3.10 was not found" in setup(checkout).stderr


def test_python_that_is_named_but_of_another_version_is_refused(checkout: Path):
    executable(checkout / "python", "echo 3.11")
    done = setup(checkout, PYTHON=str(checkout / "python"))
    assert done.returncode == 1
    assert f"PYTHON={checkout / 'python'} is not a Python 3.10" in done.stderr


@pytest.mark.parametrize(
    ("place", "environ"),
    [
        ("bin/python3.10", {}),
        ("bin/python3", {}),
        (".pyenv/versions/3.10.99/bin/python3.10", {}),
        ("elsewhere/versions/3.10.1/bin/python3.10", {"PYENV_ROOT": "elsewhere"}),
        ("named/python", {"PYTHON": "named/python"}),
    ],
)
def test_python_is_found(checkout: Path, place: str, environ: dict[str, str]):
    # Answers its version; for `-m venv` it leaves a trace, and everything after that fails.
    executable(checkout / place, f'case "$1" in -c) echo 3.10 ;; *) echo "$@" >>{checkout}/trace; exit 1 ;; esac')
    done = setup(checkout, **{name: str(checkout / value) for name, value in environ.items()})
    assert f"making .venv with {checkout / place}" in done.stderr
    assert (checkout / "trace").read_text().startswith("-m venv .venv")


def test_another_platform_is_refused(checkout: Path):
    (checkout / "bin" / "uname").unlink()
    executable(checkout / "bin" / "uname", "echo Darwin arm64")
    assert "this is Darwin arm64" in setup(checkout).stderr


def test_nothing_is_done_when_all_is_there_and_something_when_the_lock_changes(checkout: Path):
    executable(checkout / ".venv" / "bin" / "python", f'echo "$@" >>{checkout}/trace; echo 3.10')
    assert setup(checkout).returncode == 0  # no stamps yet: packages and project are installed into what is there
    steps = (checkout / "trace").read_text().splitlines()
    assert [step.split()[:3] for step in steps][1:] == [["-m", "pip", "install"]] * 2
    assert "--no-deps --require-hashes -r requirements.lock" in steps[1]
    assert "--no-index" in steps[2]

    os.truncate(checkout / "trace", 0)
    assert setup(checkout).stderr == ""
    assert (checkout / "trace").read_text() == ""

    with open(checkout / "pyproject.toml", "a") as file:
        file.write("\n")
    assert setup(checkout).returncode == 0
    assert "--editable" in (checkout / "trace").read_text()
    assert "requirements.lock" not in (checkout / "trace").read_text()

    with open(checkout / "requirements.lock", "a") as file:
        file.write("# moved\n")
    done = setup(checkout)  # wants a new .venv, and there is no Python to make one with
    assert done.returncode == 1
    assert "Python 3.10 was not found" in done.stderr


def test_scripts_are_plain_sh():
    for script in (ROOT / "scripts").glob("*.sh"):
        subprocess.run(["/bin/sh", "-n", script], check=True, timeout=10)
