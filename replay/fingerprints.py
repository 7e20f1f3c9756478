"""Sizes and digests of files, by which a checkpoint is known to be whole."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Fingerprint = dict[str, Any]  # "bytes" and "sha256"


def fingerprint(path: Path) -> Fingerprint:
    """Of one file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def fingerprints(folder: Path) -> dict[str, Fingerprint]:
    """Of all files below a folder, by their paths in it."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): fingerprint(path) for path in sorted(found)}


def digest_of(files: Mapping[str, Fingerprint]) -> str:
    """One digest for all of a folder's fingerprints."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def damage(folder: Path, wanted: Mapping[str, Fingerprint]) -> str:
    """What is wrong with a folder's files, in words; "" where all are as they were."""
    for name, before in wanted.items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        found = fingerprint(path)
        if found != before:
            return (
                f"{name} has {found['bytes']} bytes and digest {found['sha256'][:8]}, want {before['bytes']} and "
                f"{before['sha256'][:8]}"
            )
    return ""
