"""Writes an experiment as JSON and reads it back, exactly equal: what `config.json` of a run holds.

Where a field's annotation says what it holds, the JSON is plain. Where it doesn't (`Any`), whatever JSON would forget
is tagged: {"!dataclass": "module:Name", ...fields} and {"!tuple": [...]}. JSON lacks infinity: {"!float": "inf"}.
"""

import dataclasses
import hashlib
import importlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

from configs.experiment import Experiment
from configs.fields import hints_of

DATACLASS, TUPLE, FLOAT = "!dataclass", "!tuple", "!float"


def to_json(experiment: Experiment) -> str:
    """The whole experiment, indented.

    Raises:
        TypeError: a value that JSON can't hold; the message names its path.
    """
    return json.dumps(_encode(experiment, Experiment, "experiment"), indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Experiment:
    """What `to_json` wrote. Imports the module of the agent's config.

    Raises:
        ValueError: not such a text, or one with other fields than this version has; the message names them.
    """
    experiment = _decode(json.loads(text), Experiment, "experiment")
    assert isinstance(experiment, Experiment)
    return experiment


def digest_of(experiment: Experiment) -> str:
    """16 hexadecimal digits that are equal where the experiments are."""
    plain = json.dumps(_encode(experiment, Experiment, "experiment"), sort_keys=True, allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def _encode(value: Any, annotation: Any, path: str) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {FLOAT: repr(value)}
        case tuple():
            typed, inner = _tuple_types(annotation, len(value))
            items = [_encode(item, inner[i], f"{path}[{i}]") for i, item in enumerate(value)]
            return items if typed else {TUPLE: items}
        case list():
            return [_encode(item, Any, f"{path}[{i}]") for i, item in enumerate(value)]
        case Mapping():
            for key in value:
                if not isinstance(key, str) or key.startswith("!"):
                    raise TypeError(f"{path} has the key {key!r}; keys must be strings that don't start with '!'.")
            return {key: _encode(item, Any, f"{path}.{key}") for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            hints = hints_of(type(value))
            fields = {
                field.name: _encode(getattr(value, field.name), hints[field.name], f"{path}.{field.name}")
                for field in dataclasses.fields(value)
            }
            return fields if annotation is type(value) else {DATACLASS: _name_of(type(value), path), **fields}
        case _:
            raise TypeError(f"{path} is a {type(value).__name__}, which config.json can't hold. Use a plain value.")


def _decode(data: Any, annotation: Any, path: str) -> Any:
    match data:
        case {"!float": str(text)}:
            return float(text)
        case {"!tuple": list(items)}:
            return tuple(_decode(item, Any, path) for item in items)
        case {"!dataclass": str(name)}:
            fields = {key: value for key, value in data.items() if key != DATACLASS}
            return _build(_type_named(name, path), fields, path)
        case dict():
            if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
                return _build(annotation, data, path)
            return {key: _decode(item, Any, f"{path}.{key}") for key, item in data.items()}
        case list():
            typed, inner = _tuple_types(annotation, len(data))
            items = [_decode(item, inner[i], f"{path}[{i}]") for i, item in enumerate(data)]
            return tuple(items) if typed else items
        case _:
            return data


def _build(cls: type, fields: Mapping[str, Any], path: str) -> Any:
    hints, known = hints_of(cls), {field.name for field in dataclasses.fields(cls)}
    if known != set(fields):
        raise ValueError(
            f"{path} was written by another version: fields missing {sorted(known - set(fields))}, "
            f"unknown {sorted(set(fields) - known)}. Correct config.json, or start a new run."
        )
    return cls(**{name: _decode(value, hints[name], f"{path}.{name}") for name, value in fields.items()})


def _tuple_types(annotation: Any, length: int) -> tuple[bool, tuple[Any, ...]]:
    """Whether the annotation alone says that this is a tuple, and the annotations of its entries."""
    choices = typing.get_args(annotation) if typing.get_origin(annotation) in (Union, types.UnionType) else [annotation]
    for choice in choices:
        if choice is tuple or typing.get_origin(choice) is tuple:
            inner = typing.get_args(choice) or (Any, Ellipsis)
            if len(inner) == 2 and inner[1] is Ellipsis:
                inner = (inner[0],) * length
            if len(inner) == length:
                return True, inner
    return False, (Any,) * length


def _name_of(cls: type, path: str) -> str:
    if "<locals>" in cls.__qualname__ or cls.__module__ == "__main__":
        raise TypeError(
            f"{path} is a {cls.__qualname__} of {cls.__module__}, which can't be imported by name when config.json is "
            "read back. Define it at the top of a module."
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def _type_named(name: str, path: str) -> type:
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is a {name}, which can't be imported: {error}.") from error
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ValueError(f"{path} is a {name}, which is no dataclass.")
    return found
