"""What belongs to each of the learner's checkpoints. Loads no numeric library: the launcher reads it too."""

import dataclasses
import json
from pathlib import Path

from launch.run_directory import write_atomically
from replay.fingerprints import Fingerprint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LearnerManifest:
    """What belongs to one checkpoint of the learner."""

    step: int  # learner steps done
    saved_at: float  # seconds since the epoch
    files: dict[str, Fingerprint]  # by path in its folder


def steps_in(root: Path) -> list[int]:
    """Of all finished checkpoints, the oldest first. What has no manifest isn't ours, and is never touched."""
    return sorted(int(path.stem) for path in root.glob("*.json") if path.stem.isdecimal())


def folder_of(root: Path, step: int) -> Path:
    """Where Orbax writes a step."""
    return root / str(step)


def manifest_of(root: Path, step: int) -> Path:
    """The file that says what belongs to it."""
    return root / f"{step}.json"


def read_manifest(root: Path, step: int) -> LearnerManifest | None:
    """What belongs to a checkpoint; None where that can't be read."""
    try:
        return LearnerManifest(**json.loads(manifest_of(root, step).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_manifest(root: Path, manifest: LearnerManifest) -> None:
    """In one step."""
    write_atomically(manifest_of(root, manifest.step), json.dumps(dataclasses.asdict(manifest)))
