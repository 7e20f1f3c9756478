"""The shape of the tree: what may stand in `__init__.py`, what importing does, which agent knows which."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import source_tree

FIRST_PARTY = set(source_tree.PACKAGES)
HEAVY = ("jax", "jaxlib", "tensorflow", "reverb", "launchpad", "envpool", "flax", "optax", "gymnasium")

# Runs in a child: loads the modules named on the command line and says what that did to the process. What libraries do
# when they are imported is not ours to judge, so they come first.
IMPORT_ALL = """
import importlib, json, os, sys, threading
libraries, modules = json.loads(sys.argv[1])
for name in libraries:
    importlib.import_module(name)
environment = dict(os.environ)
before = {thread.name for thread in threading.enumerate()}
tasks = len(os.listdir("/proc/self/task"))
for name in modules:
    importlib.import_module(name)
backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", {})
print(json.dumps({
    "environment": sorted(key for key in {*environment, *os.environ} if environment.get(key) != os.environ.get(key)),
    "threads": sorted({thread.name for thread in threading.enumerate()} - before),
    "tasks": len(os.listdir("/proc/self/task")) - tasks,
    "devices": sorted(backends),
    "loaded": sorted({name.split(".")[0] for name in sys.modules}),
}))
"""


def import_in_child(libraries: list[str], modules: list[str], cwd: Path = source_tree.ROOT) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps([libraries, modules])],
        capture_output=True, text=True, timeout=100, cwd=cwd, env={**os.environ, "PYTHONPATH": str(cwd)},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    report: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return report


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_init_files_hold_a_docstring_and_nothing_else():
    files = [path for path in source_tree.source_files("tests", *source_tree.PACKAGES) if path.name == "__init__.py"]
    assert len(files) >= 5
    for path in files:
        body = source_tree.parse(path).body
        assert all(is_docstring(node) for node in body), f"{path} holds code"
        assert body or path.is_relative_to(source_tree.ROOT / "tests"), f"{path} says nothing of its folder"


def test_every_folder_of_python_files_is_a_package():
    for path in source_tree.source_files("tests", *source_tree.PACKAGES):
        assert (path.parent / "__init__.py").exists(), (
            f"{path.parent} has no __init__.py: its files are skipped silently"
        )


def test_importing_does_nothing():
    files = source_tree.source_files()
    imports = set().union(*(source_tree.imported_modules(source_tree.parse(path), anywhere=False) for path in files))
    libraries = sorted(name for name in imports if name.split(".")[0] not in FIRST_PARTY)
    report = import_in_child(libraries, [source_tree.module_name(path) for path in files])
    assert report["environment"] == [], "modules that change environment variables when they are imported"
    assert report["threads"] == []
    assert report["tasks"] == 0, "native threads"
    assert report["devices"] == [], "modules that initialise JAX when they are imported"


def test_importing_something_that_does_something_is_noticed(tmp_path):
    (tmp_path / "guilty.py").write_text(
        "import os, threading, time\nos.environ['GUILTY'] = '1'\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True, name='guilty').start()\n"
        "import jax\njax.devices()\n"
    )
    report = import_in_child(["jax"], ["guilty"], tmp_path)
    assert report["environment"] == ["GUILTY"]
    assert report["threads"] == ["guilty"]
    assert report["tasks"] >= 1
    assert report["devices"] == ["cpu"]


def test_configs_load_no_jax():
    names = [source_tree.module_name(path) for path in source_tree.source_files("configs")]
    names += [source_tree.module_name(path) for path in source_tree.ROOT.glob("agents/*/config.py")]
    loaded = import_in_child([], [*names, "agents.registry", "replay.spec"])["loaded"]
    assert "configs" in loaded  # control
    assert set(HEAVY).isdisjoint(loaded)


def agent_folders() -> list[str]:
    return sorted(path.parent.name for path in source_tree.ROOT.glob("agents/*/__init__.py"))


@pytest.mark.parametrize("agent", agent_folders())
def test_one_agent_does_not_import_another(agent: str):
    others = {f"agents.{name}" for name in agent_folders()} - {f"agents.{agent}"}
    for path in source_tree.source_files(f"agents/{agent}"):
        imported = source_tree.imported_modules(source_tree.parse(path), anywhere=True)
        guilty = {name for name in imported if ".".join(name.split(".")[:2]) in others}
        assert not guilty, f"{path} imports {guilty}; share it in a module of agents/ instead"


def test_what_all_agents_share_imports_none_of_them():
    for path in source_tree.ROOT.glob("agents/*.py"):
        imported = source_tree.imported_modules(source_tree.parse(path), anywhere=True)
        assert not {name for name in imported if name.split(".")[1:2] and name.split(".")[1] in agent_folders()}
