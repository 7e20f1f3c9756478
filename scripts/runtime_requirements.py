"""Prints the part of requirements.lock that a running node needs: without tests, linters and types.

python scripts/runtime_requirements.py pyproject.toml requirements.lock > runtime.lock

The lock says of each package what needs it ("# via"): what [project.dependencies] reach is kept, hashes and all, so an
image holds the very versions that the tests ran with. Needs nothing but Python and its pip.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pip._vendor import tomli


def blocks_of(lock: str) -> dict[str, str]:
    """Each package's lines, by its name."""
    starts = [match.start() for match in re.finditer(r"^[a-z0-9]", lock, re.MULTILINE)]
    blocks = [lock[start:end] for start, end in zip(starts, [*starts[1:], len(lock)], strict=True)]
    return {block.partition("==")[0].partition("[")[0]: block for block in blocks}


def needed_by(block: str) -> list[str]:
    """The packages that a package is there for."""
    _, _, via = block.partition("# via")
    return re.findall(r"^[ #]*([a-z0-9][a-z0-9.-]*)(?:$| )", via, re.MULTILINE)


def reached(blocks: Mapping[str, str], roots: Iterable[str]) -> set[str]:
    """The roots, and all that they need."""
    found: set[str] = set()
    fresh = set(roots)
    while fresh:
        found |= fresh
        fresh = {name for name, block in blocks.items() if fresh & set(needed_by(block))} - found
    return found


def runtime_requirements(pyproject: str, lock: str) -> str:
    """The lock without the packages that only extras need.

    Raises:
        ValueError: a dependency of the project isn't in the lock.
    """
    blocks = blocks_of(lock)
    roots = [re.split(r"[\[=<>!~; ]", line)[0].lower() for line in tomli.loads(pyproject)["project"]["dependencies"]]
    missing = sorted(set(roots) - set(blocks))
    if missing:
        raise ValueError(f"requirements.lock lacks {', '.join(missing)} of pyproject.toml. Run `make lock`.")
    kept = reached(blocks, roots)
    return "".join(block for name, block in blocks.items() if name in kept)


if __name__ == "__main__":
    pyproject_path, lock_path = map(Path, sys.argv[1:])
    print(runtime_requirements(pyproject_path.read_text(), lock_path.read_text()), end="")
