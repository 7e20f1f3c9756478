"""The repository's own source, as tests that read it need it."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("replay", "agents", "configs", "launch")


def source_files(*folders: str) -> list[Path]:
    """Python files of these folders, by default of everything that is installed, in order."""
    return sorted(path for folder in folders or PACKAGES for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """E.g. "replay.spec"; a package's `__init__.py` has the package's name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parse(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(), filename=str(path))


def imported_modules(tree: ast.Module, *, anywhere: bool) -> set[str]:
    """Full names of modules that are imported: at the top of the file, or `anywhere` in it."""
    found: set[str] = set()
    for node in ast.walk(tree) if anywhere else tree.body:
        match node:
            case ast.Import(names=names):
                found.update(name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
            case _:
                pass
    return found
