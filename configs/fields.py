"""Walks the fields of an experiment: their paths, types, values, and the comments beside them in the source."""

import ast
import dataclasses
import inspect
import io
import re
import tokenize
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One number of an experiment, as the command line names it."""

    path: str  # e.g. "learner.batch_size"
    annotation: Any
    value: Any  # in this experiment
    comment: str  # as it stands beside the field in the source: what it means, and its unit

    @property
    def type(self) -> str:
        """The annotation, in words."""
        return describe_type(self.annotation)


def list_fields(config: Any) -> tuple[Field, ...]:
    """All fields that can be set, in the order of the source, those of nested dataclasses under their full path."""
    return tuple(_walk(config, ""))


def _walk(config: Any, prefix: str) -> Iterator[Field]:
    hints, comments = hints_of(type(config)), comments_of(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _walk(value, f"{prefix}{field.name}.")
        else:
            yield Field(
                path=prefix + field.name,
                annotation=hints[field.name],
                value=value,
                comment=comments.get(field.name, ""),
            )


def hints_of(cls: type) -> dict[str, Any]:
    """The dataclass's annotations, resolved."""
    return typing.get_type_hints(cls)


def comments_of(cls: type) -> dict[str, str]:
    """Field name -> its comment: on its own lines, else on the lines right above it. Base classes count too."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found.update(_comments_in(base))
    return found


def _comments_in(cls: type) -> dict[str, str]:
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(cls))
    except (OSError, TypeError):  # made at run time: there is no source
        return {}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    comments: dict[int, str] = {}  # by line
    alone: set[int] = set()  # lines with nothing but a comment
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("#").strip()
            if not token.line[: token.start[1]].strip():
                alone.add(token.start[0])
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = [line for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in comments]
            if not lines:
                first = node.lineno
                while first - 1 in alone:
                    first -= 1
                lines = list(range(first, node.lineno))
            found[node.target.id] = " ".join(comments[line] for line in lines)
    return found


def describe_type(annotation: Any) -> str:
    """E.g. "int", "uniform|prioritized", "tuple of int", "float or none"."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join("none" if choice is type(None) else describe_type(choice) for choice in arguments)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return f"tuple of {describe_type(arguments[0])}"
        return f"({', '.join(map(describe_type, arguments))})"
    if annotation is dict or origin is dict:
        return "dict"
    if annotation is Any:
        return "any"
    return getattr(annotation, "__name__", None) or re.sub(r"^typing\.", "", str(annotation))
