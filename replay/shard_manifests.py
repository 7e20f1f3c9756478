"""What each checkpoint of a shard holds. Loads neither Reverb nor TensorFlow: the launcher reads it too."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from replay.fingerprints import Fingerprint

MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint holds, and what it was made with."""

    saved_at: float  # seconds since the epoch
    items: dict[str, int]  # by table
    plan: dict[str, Any]
    layout: dict[str, str]  # dtype and shape, by column
    name: str  # Reverb's, of the folder that it loads
    files: dict[str, Fingerprint]  # by name


def numbers_in(root: Path) -> list[int]:
    """Of all that is finished, the oldest first. What isn't ours has no manifest, and is never touched."""
    found = (path for path in root.glob("*") if path.name.isdecimal() and (path / MANIFEST).exists())
    return sorted(int(path.name) for path in found)


def folder_of(root: Path, number: int) -> Path:
    """Where a checkpoint lies."""
    return root / f"{number:06d}"


def read_manifest(root: Path, number: int) -> Manifest:
    """Of one checkpoint.

    Raises:
        ValueError: it can't be read.
    """
    try:
        return Manifest(**json.loads((folder_of(root, number) / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"its {MANIFEST} can't be read: {error}") from error
