"""A field that no code reads is a lie on the command line."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import source_tree

# Where fields are declared. Validation in these files is no use of a field; a property derived from it is.
DECLARING = (
    Path("configs/experiment.py"),
    Path("replay/spec.py"),
    *(path.relative_to(source_tree.ROOT) for path in sorted(source_tree.ROOT.glob("agents/*/config.py"))),
)
IGNORED = ("ArraySpec", "DiscreteAction", "ContinuousAction", "EnvironmentSpec")  # facts, not settings


def declared_fields(tree: ast.Module) -> list[tuple[str, str]]:
    """(class, field) of every dataclass of settings in a file."""
    return [
        (node.name, line.target.id)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.decorator_list and node.name not in IGNORED
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]


def read_attributes(nodes: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """(owner, attribute) of every attribute that is read, e.g. ("learner", "threads") of experiment.learner.threads."""
    found = set()
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                match node.value:
                    case ast.Attribute(attr=owner) | ast.Name(id=owner):
                        found.add((owner, node.attr))
                    case _:
                        found.add(("", node.attr))
    return found


def properties(tree: ast.Module) -> list[ast.AST]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(line) == "property" for line in node.decorator_list)
    ]


def unread_fields(declaring: dict[str, ast.Module], using: list[ast.Module]) -> list[str]:
    """Declared fields that nothing reads. One name in two classes must be read off an owner that is called alike."""
    reads = read_attributes([*using, *(node for tree in declaring.values() for node in properties(tree))])
    names = {name for _, name in reads}
    fields = [(file, cls, field) for file, tree in declaring.items() for cls, field in declared_fields(tree)]
    unread = []
    for file, cls, field in fields:
        ambiguous = sum(other == field for _, _, other in fields) > 1
        group = cls.removesuffix("Config").removesuffix("Spec").lower()
        owners = {owner.lower().lstrip("_") for owner, name in reads if name == field}
        if (field not in names) or (ambiguous and not owners & {group, "config", "self"}):
            unread.append(f"{file}: {cls}.{field}")
    return unread


def parsed() -> tuple[dict[str, ast.Module], list[ast.Module]]:
    declaring = {str(path): source_tree.parse(source_tree.ROOT / path) for path in DECLARING}
    using = [
        source_tree.parse(path)
        for path in source_tree.source_files()
        if path.relative_to(source_tree.ROOT) not in DECLARING and path.parent.name != "configs"
    ]
    return declaring, using


def test_every_field_is_read_by_some_code():
    unread = unread_fields(*parsed())
    assert not unread, "fields that no code reads (use or delete them):\n" + "\n".join(unread)


@pytest.mark.parametrize(
    ("using", "want"),
    [
        ("config.size; experiment.learner.threads", ["f.py: ActorConfig.threads"]),
        ("config.size = 1; learner.threads; actor.threads", ["f.py: LearnerConfig.size"]),  # written, not read
        ("learner.size; learner.threads; actor.threads", []),
        (
            "f(size=1, threads=2)",
            ["f.py: LearnerConfig.size", "f.py: LearnerConfig.threads", "f.py: ActorConfig.threads"],
        ),
    ],
)
def test_an_unread_field_is_found(using: str, want: list[str]):
    declaring = """
@dataclass
class LearnerConfig:
    size: int = 1
    threads: int = 1
    def __post_init__(self): assert self.size > 0
@dataclass
class ActorConfig:
    threads: int = 1
class NoConfig:
    other: int = 1
"""
    assert unread_fields({"f.py": ast.parse(declaring)}, [ast.parse(using)]) == want


def test_a_field_behind_a_property_is_read():
    declaring = "@dataclass\nclass C:\n    a: int = 1\n    b: int = 1\n    @property\n    def c(self): return self.a"
    assert unread_fields({"f.py": ast.parse(declaring)}, []) == ["f.py: C.b"]
