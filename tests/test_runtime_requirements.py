import subprocess
import sys
from pathlib import Path

from tests.source_tree import ROOT

LOCK = """\
a==1 \\
    --hash=sha256:00
    # via
    #   antiphon (pyproject.toml)
    #   d
b==2 \\
    --hash=sha256:01
    # via a
c==3 \\
    --hash=sha256:02
    # via d
d==4 \\
    --hash=sha256:03
    # via antiphon (pyproject.toml)
"""


def run(folder: Path, pyproject: str, lock: str) -> "subprocess.CompletedProcess[str]":
    """As the Dockerfile does: by the pip of any Python 3.10."""
    (folder / "pyproject.toml").write_text(pyproject)
    (folder / "requirements.lock").write_text(lock)
    command = [sys.executable, str(ROOT / "scripts/runtime_requirements.py"), "pyproject.toml", "requirements.lock"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_only_what_the_project_itself_reaches_is_kept(tmp_path):
    done = run(tmp_path, '[project]\ndependencies = ["A>=1"]\n', LOCK)
    assert done.returncode == 0, done.stderr
    assert done.stdout == LOCK[: LOCK.index("c==3")]


def test_a_lock_that_lacks_a_dependency_is_refused(tmp_path):
    done = run(tmp_path, '[project]\ndependencies = ["e"]\n', LOCK)
    assert done.returncode == 1
    assert "requirements.lock lacks e of" in done.stderr


def test_an_image_gets_the_stack_and_no_tests(tmp_path):
    kept = run(tmp_path, *((ROOT / name).read_text() for name in ("pyproject.toml", "requirements.lock"))).stdout
    for name in ("jax==", "dm-reverb==", "tensorflow-cpu==", "grpcio=="):
        assert f"\n{name}" in kept
    for name in ("pytest==", "mypy==", "hypothesis=="):
        assert f"\n{name}" not in kept
