"""Says whether this machine can run Antiphon, and what to do where it can't: `python -m launch.doctor`.

Imports nothing heavy itself: a broken TensorFlow or Reverb is what it is there to report.
"""

import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

try:
    import psutil
    import rich.console
    import rich.table
    import rich.text
    from absl import app, flags
except ImportError as _error:
    if __name__ != "__main__":
        raise
    sys.exit(
        f"{_error}: {sys.executable} is without Antiphon's packages.\nmake setup && .venv/bin/python -m launch.doctor"
    )

REPOSITORY = Path(__file__).resolve().parent.parent
MODULES = {  # package -> what to import
    "numpy": "numpy",
    "jax": "jax",
    "flax": "flax.linen",
    "optax": "optax",
    "rlax": "rlax",
    "orbax-checkpoint": "orbax.checkpoint",
    "tensorflow-cpu": "tensorflow",
    "dm-reverb": "reverb",
    "dm-launchpad-nightly": "launchpad",
    "envpool": "envpool",
}
IMPORT_SECONDS = 120  # for all of MODULES, on a slow disk
FILES = 4096  # open files: a Reverb server holds several for each of some hundred connections
DISK_GB, MEMORY_GB, SHARED_MEMORY_MB = 5.0, 4.0, 64.0
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")

_DIRECTORY = flags.DEFINE_string("directory", "runs", "Folder that runs are written to: is there space for them?")


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: Literal["ok", "warning", "problem"]
    found: str
    fix: str = ""  # what to type where it isn't ok


def examine(directory: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Looks at everything. Starts one child process, and nothing else."""
    return [
        examine_platform(platform.system(), platform.machine()),
        examine_python(sys.version_info[:2], sys.executable),
        *examine_versions(needed_versions(REPOSITORY)),
        *examine_imports(environ),
        examine_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        examine_proxies(environ),
        examine_disk(directory),
        examine_memory(psutil.virtual_memory().available),
        examine_shared_memory(),
    ]


def examine_platform(system: str, machine: str) -> Finding:
    """Wheels of Reverb, Launchpad and EnvPool exist for one platform."""
    found = f"{system} {machine}"
    if (system, machine) == ("Linux", "x86_64"):
        return Finding("platform", "ok", found)
    return Finding("platform", "problem", found, "use Linux on x86_64, or a container of it")


def examine_python(version: tuple[int, ...], executable: str) -> Finding:
    """Launchpad has wheels up to 3.10; EnvPool and JAX's versions start there."""
    found = f"{'.'.join(map(str, version))} ({executable})"
    if version == (3, 10):
        return Finding("Python", "ok", found)
    return Finding("Python", "problem", found, "make setup, then .venv/bin/python -m launch.doctor")


def needed_versions(repository: Path) -> dict[str, str]:
    """Package -> version: of requirements.lock, or where only the package is installed, of its own metadata."""
    lock = repository / "requirements.lock"
    if lock.exists():
        return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", lock.read_text(), re.MULTILINE))
    try:
        lines = importlib.metadata.requires("antiphon") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {name: version for line in lines for name, version in re.findall(r"^([\w.-]+)==([\w.]+)$", line)}


def examine_versions(needed: Mapping[str, str]) -> Iterator[Finding]:
    """Compares what is installed with what is needed."""
    if not needed:
        yield Finding(
            "versions", "warning", "neither requirements.lock nor the installed project was found", "make setup"
        )
        return
    wrong = []
    for name, version in needed.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "missing"
        if found != version:
            wrong.append(Finding(name, "problem", f"{found}, {version} is needed", "make setup"))
    yield from wrong
    if not wrong:
        yield Finding("versions", "ok", f"all {len(needed)} packages as in requirements.lock")


# Runs in a child: whatever an import does (abort included) leaves the doctor alive. Each result is told at once.
_IMPORT_CHILD = """
import gc, importlib, json, sys, time
for package, module in json.loads(sys.argv[1]).items():
    started = time.monotonic()
    print(json.dumps({"trying": package}), flush=True)
    gc.disable()  # agents/collector.py says why
    try:
        importlib.import_module(module)
        error = ""
    except BaseException as exception:
        error = f"{type(exception).__name__}: {exception}"
    print(json.dumps({"package": package, "error": error, "seconds": time.monotonic() - started}), flush=True)
import jax
print(json.dumps({"devices": [f"{device.platform}: {device.device_kind}" for device in jax.devices()]}), flush=True)
"""


def examine_imports(environ: Mapping[str, str], modules: Mapping[str, str] = MODULES) -> Iterator[Finding]:
    """Imports each library in a child process, and asks JAX for its devices there."""
    command = [sys.executable, "-c", _IMPORT_CHILD, json.dumps(modules)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", **environ}
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, env=quiet)
        output, errors, code = child.stdout, child.stderr, child.returncode
    except subprocess.TimeoutExpired as error:
        output, errors, code = str(error.stdout or b"", "utf-8", "replace"), f"no end after {IMPORT_SECONDS} s", -1
    trying, seconds, devices, failed = "", 0.0, None, False
    for line in output.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a library's own words
        if not isinstance(record, dict):
            continue
        trying = record.get("trying", "" if "package" in record else trying)
        seconds += record.get("seconds", 0.0)
        devices = record.get("devices", devices)
        if record.get("error"):
            failed = True
            yield Finding(f"import {record['package']}", "problem", record["error"], _import_fix(record["error"]))
    last = (errors.strip().splitlines() or ["it said nothing"])[-1]
    if trying:
        failed = True
        yield Finding(f"import {trying}", "problem", f"the process ended with code {code}: {last}", "make clean setup")
    if not failed:
        yield Finding("imports", "ok", f"{len(modules)} libraries in {seconds:.1f} s")
    if devices is not None:
        yield Finding(
            "JAX devices", "ok", ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
        )
    elif not trying:
        yield Finding("JAX devices", "problem", last, "JAX_PLATFORMS=cpu does without a broken accelerator")


def _import_fix(error: str) -> str:
    if "GLIBC" in error or "libstdc++" in error:
        return "this system is older than the wheels: use a newer one, or a container"
    return "make clean setup; if it stays, something else is found first: unset PYTHONPATH, leave other environments"


def examine_files(soft: int, hard: int) -> Finding:
    """The limit of open files. Every connection and every log is one."""
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return Finding("open files", "ok", f"limit {soft}")
    able = hard == resource.RLIM_INFINITY or hard >= FILES
    fix = f"ulimit -n {FILES}" if able else f"raise the hard limit ({hard}) in /etc/security/limits.conf"
    return Finding("open files", "warning", f"limit {soft}, {FILES} is enough for hundreds of actors", fix)


def examine_proxies(environ: Mapping[str, str]) -> Finding:
    """A proxy is asked by gRPC even for loopback addresses: a client then never connects, without an error."""
    proxies = [name for name in PROXIES if environ.get(name)]
    exempt = f"{environ.get('no_proxy', '')},{environ.get('NO_PROXY', '')}".replace(" ", "").split(",")
    missing = [host for host in ("localhost", "127.0.0.1") if host not in exempt and "*" not in exempt]
    if not proxies:
        return Finding("proxies", "ok", "none set")
    if not missing:
        return Finding("proxies", "ok", f"{', '.join(proxies)}; local addresses are exempt")
    fix = "export no_proxy=localhost,127.0.0.1,::1"
    return Finding("proxies", "problem", f"{', '.join(proxies)} set, {' and '.join(missing)} not in no_proxy", fix)


def examine_disk(directory: Path) -> Finding:
    """Space for runs: checkpoints and logs."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding(
            "disk", "problem", f"{existing} can't be written", "--set run.directory=FOLDER, with one that can"
        )
    free = shutil.disk_usage(existing).free / 1e9
    found = f"{free:.1f} GB free at {existing}"
    if free >= DISK_GB:
        return Finding("disk", "ok", found)
    return Finding("disk", "warning", found, f"free {DISK_GB:.0f} GB, or --set run.directory=FOLDER on another disk")


def examine_memory(available: int) -> Finding:
    """What a small program takes: libraries once, some ten processes, replay."""
    found = f"{available / 1e9:.1f} GB available"
    if available / 1e9 >= MEMORY_GB:
        return Finding("memory", "ok", found)
    fix = f"free {MEMORY_GB:.0f} GB, or run fewer actors: --set topology.actors=1"
    return Finding("memory", "warning", found, fix)


def examine_shared_memory(path: Path = Path("/dev/shm")) -> Finding:
    """A container has 64 MB by default; JAX's collectives between processes want more."""
    if not path.exists():
        return Finding("shared memory", "warning", f"{path} is missing", "mount it: docker run --shm-size=1g")
    free = shutil.disk_usage(path).free / 1e6
    if free > SHARED_MEMORY_MB:
        return Finding("shared memory", "ok", f"{free:.0f} MB free in {path}")
    return Finding("shared memory", "warning", f"{free:.0f} MB free in {path}", "docker run --shm-size=1g")


def render(findings: list[Finding]) -> rich.table.Table:
    """A table for a terminal."""
    table = rich.table.Table(title="Can this machine run Antiphon?", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    styles = {"ok": "green", "warning": "yellow", "problem": "bold red"}
    for finding in findings:
        state = rich.text.Text(finding.state, style=styles[finding.state])
        table.add_row(finding.what, state, rich.text.Text(finding.found), rich.text.Text(finding.fix))
    return table


def main(argv: list[str]) -> int:
    """Prints the findings; exit code 1 where one is a problem."""
    if len(argv) > 1:
        raise app.UsageError(f"What does {argv[1]!r} mean? See --help.")
    findings = examine(Path(_DIRECTORY.value), os.environ)
    rich.console.Console().print(render(findings))
    problems = sum(finding.state == "problem" for finding in findings)
    warnings = sum(finding.state == "warning" for finding in findings)
    print(f"{problems} problems, {warnings} warnings." if problems + warnings else "Everything is as it should be.")
    return 1 if problems else 0


if __name__ == "__main__":
    app.run(main)
