"""The folder that a run leaves: its configuration, logs, metrics, curves, status and checkpoints."""

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs import serialization
from configs.experiment import Experiment

LATEST = "latest"  # a link beside the runs to the one that was made last


@dataclasses.dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where each thing of a run lies."""

    path: Path

    @property
    def config(self) -> Path:
        """The whole experiment, as JSON."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a line, about one a second."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """A folder of event files."""
        return self.path / "tensorboard"

    @property
    def curve(self) -> Path:
        """The learning curve, PNG."""
        return self.path / "curve.png"

    @property
    def status(self) -> Path:
        """The newest state of the run, as JSON; always whole."""
        return self.path / "status.json"

    @property
    def checkpoints(self) -> Path:
        """A folder."""
        return self.path / "checkpoints"

    @property
    def request(self) -> Path:
        """Touched by whoever wants a checkpoint now."""
        return self.checkpoints / "request"

    @property
    def logs(self) -> Path:
        """A folder with one log file a process."""
        return self.path / "logs"

    def log(self, name: str) -> Path:
        """The log file of one process, by its name, e.g. "actor-3"."""
        return self.logs / f"{name}.log"


def make_run_directory(experiment: Experiment) -> RunDirectory:
    """Makes <run.directory>/<name>-<YYYYmmdd-HHMMSS>[-n]/ with the experiment in it, and points `latest` at it.

    Raises:
        OSError: it can't be made or written; the message names run.directory.
    """
    parent, content = Path(experiment.run.directory), serialization.to_json(experiment)
    name = experiment.name.replace("/", "-")
    try:
        run = RunDirectory(_make_unique(parent, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"))
        for folder in (run.logs, run.tensorboard, run.checkpoints):
            folder.mkdir()
        write_atomically(run.config, content)
        _point_latest(parent, run.path.name)
    except OSError as error:
        raise OSError(
            error.errno,
            f"can't make a run's folder in run.directory={str(parent)!r}: {error.strerror} ({error.filename}). "
            "Set run.directory to a folder that can be written and has space, e.g. --set run.directory=/tmp/runs.",
        ) from error
    return run


def _make_unique(parent: Path, name: str) -> Path:
    """Makes a new folder; two runs of one second get different ones."""
    parent.mkdir(parents=True, exist_ok=True)
    for n in range(1000):
        path = parent / (name if n == 0 else f"{name}-{n}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise FileExistsError(17, "a thousand runs of this second exist", str(parent / name))


def _point_latest(parent: Path, name: str) -> None:
    """Replaces the link in one step. A real file of that name, or a file system without links, is left alone."""
    link, fresh = parent / LATEST, parent / f".{LATEST}-{os.getpid()}"
    if link.exists() and not link.is_symlink():
        return
    with contextlib.suppress(PermissionError, NotImplementedError):
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(name)
        os.replace(fresh, link)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file in one step: a reader sees the old content or the new, never a part."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def to_json(value: Any) -> str:
    """Strict JSON on one line: numbers that JSON doesn't have (nan, inf) become null."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
