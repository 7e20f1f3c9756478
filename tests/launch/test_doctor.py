"""The doctor, in child processes that really are broken."""

import importlib.metadata
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from launch import doctor
from tests.source_tree import ROOT

SECONDS = 100


def run_doctor(
    *arguments: str,
    environ: dict[str, str] | None = None,
    open_files: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0],
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(
        ["sh", "-c", 'ulimit -n "$0"; exec "$@"', str(open_files), sys.executable, "-m", "launch.doctor", *arguments],
        cwd=ROOT, env={**inherited, "COLUMNS": "250", **(environ or {})},
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


def row(output: str, what: str) -> list[str]:
    """Cells of the table's row on `what`."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]
    return next(cells for cells in rows if cells[0] == what)


def shadow(folder: Path, module: str, body: str) -> dict[str, str]:
    """A module that is found before the real one."""
    (folder / f"{module}.py").write_text(body)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.slow
def test_good_machine(tmp_path: Path):
    done = run_doctor(f"--directory={tmp_path}")
    assert done.returncode == 0, done.stdout
    assert row(done.stdout, "imports")[1] == "ok"
    assert row(done.stdout, "versions")[1] == "ok"
    assert row(done.stdout, "JAX devices")[2] == "4 x cpu: cpu"
    assert "problem" not in done.stdout


@pytest.mark.slow
def test_broken_machine_is_described_and_fails(tmp_path: Path):
    environ = shadow(tmp_path, "rlax", "raise ImportError('libmissing.so.1: cannot open shared object file')")
    environ["http_proxy"] = "http://192.0.2.1:3128"  # an address that is never anybody's (RFC 5737)
    environ["no_proxy"] = "example.org"
    done = run_doctor(environ=environ, open_files=512)
    assert done.returncode == 1
    assert row(done.stdout, "import rlax")[1:3] == [
        "problem",
        "ImportError: libmissing.so.1: cannot open shared object file",
    ]
    assert "PYTHONPATH" in row(done.stdout, "import rlax")[3]
    assert row(done.stdout, "proxies")[1:] == [
        "problem",
        "http_proxy set, localhost and 127.0.0.1 not in no_proxy",
        "export no_proxy=localhost,127.0.0.1,::1",
    ]
    assert row(done.stdout, "open files")[1] == "warning"
    assert "limit 512" in row(done.stdout, "open files")[2]
    assert "2 problems, 1 warnings" in done.stdout


def imports(environ: dict[str, str], modules: dict[str, str]) -> dict[str, doctor.Finding]:
    return {finding.what: finding for finding in doctor.examine_imports({**os.environ, **environ}, modules)}


def test_library_that_raises_does_not_hide_the_others(tmp_path: Path):
    environ = shadow(tmp_path, "broken", "raise OSError('GLIBC_2.99 not found')")
    found = imports(environ, {"a": "json", "b": "broken", "c": "nowhere_to_be_found"})
    assert found["import b"].found == "OSError: GLIBC_2.99 not found"
    assert "newer" in found["import b"].fix
    assert found["import c"].found == "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    assert "imports" not in found
    assert found["JAX devices"].state == "ok"


def test_library_that_kills_its_process_is_named(tmp_path: Path):
    environ = shadow(tmp_path, "deadly", "import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos.abort()")
    found = imports(environ, {"a": "json", "b": "deadly"})
    assert found["import b"].state == "problem"
    assert "code -6: last words" in found["import b"].found


def test_library_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "IMPORT_SECONDS", 2)
    found = imports(shadow(tmp_path, "endless", "import time\ntime.sleep(60)"), {"a": "json", "b": "endless"})
    assert "no end after 2 s" in found["import b"].found


def test_all_is_well_where_all_is_well():
    found = imports({}, {"a": "json"})
    assert [finding.state for finding in found.values()] == ["ok", "ok"]


def test_jax_without_its_device():
    found = imports({"JAX_PLATFORMS": "tpu"}, {"a": "json"})
    assert found["JAX devices"].state == "problem"
    assert found["JAX devices"].found
    assert "JAX_PLATFORMS=cpu" in found["JAX devices"].fix


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({}, "ok"),
        ({"http_proxy": ""}, "ok"),
        ({"http_proxy": "x"}, "problem"),
        ({"grpc_proxy": "x", "no_proxy": "localhost"}, "problem"),
        ({"HTTPS_PROXY": "x", "no_proxy": "example.org, localhost,127.0.0.1"}, "ok"),
        ({"https_proxy": "x", "NO_PROXY": "*"}, "ok"),
    ],
)
def test_proxies(environ: dict[str, str], state: str):
    assert doctor.examine_proxies(environ).state == state


def test_wrong_and_missing_versions():
    found = list(doctor.examine_versions({"numpy": "1.0", "no-such-package": "2.0", "absl-py": _version("absl-py")}))
    assert [(finding.what, finding.state) for finding in found] == [
        ("numpy", "problem"),
        ("no-such-package", "problem"),
    ]
    assert found[0].found == f"{_version('numpy')}, 1.0 is needed"
    assert found[1].found == "missing, 2.0 is needed"
    assert next(iter(doctor.examine_versions({}))).state == "warning"


def _version(name: str) -> str:
    return importlib.metadata.version(name)


def test_needed_versions_come_from_the_lock(tmp_path: Path):
    assert doctor.needed_versions(ROOT)["numpy"] == "1.26.4"
    assert len(doctor.needed_versions(ROOT)) > 90
    (tmp_path / "requirements.lock").write_text("a-b==1.2.post3 \\\n    --hash=sha256:00\n    # via c==9\nd==4 ; x\n")
    assert doctor.needed_versions(tmp_path) == {"a-b": "1.2.post3", "d": "4"}


def test_platform_python_and_memory():
    assert doctor.examine_platform("Linux", "x86_64").state == "ok"
    assert doctor.examine_platform("Darwin", "arm64").state == "problem"
    assert doctor.examine_python((3, 10), "python").state == "ok"
    assert doctor.examine_python((3, 11), "python").state == "problem"
    assert doctor.examine_memory(int(8e9)).state == "ok"
    assert doctor.examine_memory(int(1e9)).state == "warning"


def test_open_files_that_only_an_administrator_can_raise():
    assert doctor.examine_files(1024, 1_000_000).fix == "ulimit -n 4096"
    assert "limits.conf" in doctor.examine_files(1024, 1024).fix
    assert doctor.examine_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY).state == "ok"


def test_disk_looks_at_the_folder_that_exists_already(tmp_path: Path):
    assert str(tmp_path) in doctor.examine_disk(tmp_path / "not" / "yet").found


def test_shared_memory_that_is_missing(tmp_path: Path):
    assert doctor.examine_shared_memory(tmp_path / "shm").state == "warning"


def test_a_python_without_the_packages_is_told_what_to_do(tmp_path: Path):
    environ = shadow(tmp_path, "psutil", "raise ModuleNotFoundError(\"No module named 'psutil'\")")
    done = run_doctor(environ=environ)
    assert done.returncode == 1
    assert "make setup" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_argument():
    assert run_doctor("fix").returncode != 0
