"""Reads a value from the text of a command line, as the type that its field is annotated with."""

import ast
import difflib
import types
import typing
from typing import Any, Literal, Union

from configs.fields import describe_type

WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_value(text: str, annotation: Any) -> Any:
    """The value that `text` stands for.

    Raises:
        ValueError: where it isn't of that type; the message says why, in a few words.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return _parse_choice(text, arguments)
    if origin in (Union, types.UnionType):
        return _parse_union(text, arguments)
    if annotation is tuple or origin is tuple:
        return _parse_tuple(text, arguments or (Any, Ellipsis))
    if annotation is dict or origin is dict:
        return _parse_dict(text)
    if annotation is bool:
        if text.lower() not in WORDS:
            raise ValueError("write true or false")
        return WORDS[text.lower()]
    if annotation is int:
        return _parse_int(text)
    if annotation is float:
        return _parse_float(text)
    if annotation is str:
        return text
    if annotation is Any:
        return _parse_literal(text)
    raise ValueError(f"a {describe_type(annotation)} can't be written on a command line")


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    number = _parse_float(text)  # 1e6 is a fine way to write a million
    if not number.is_integer():  # inf is none either
        raise ValueError("it must be a whole number")
    return int(number)


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("it is not a number") from None
    if number != number:
        raise ValueError("nan compares with nothing")
    return number


def _parse_choice(text: str, choices: tuple[Any, ...]) -> Any:
    by_name = {str(choice): choice for choice in choices}
    if text not in by_name:
        near = difflib.get_close_matches(text, by_name, n=1)
        raise ValueError(f"did you mean {near[0]}?" if near else f"it must be one of {', '.join(by_name)}")
    return by_name[text]


def _parse_union(text: str, choices: tuple[Any, ...]) -> Any:
    if type(None) in choices and text.lower() in ("none", "null"):
        return None
    reasons = []
    # str takes everything, so it comes last.
    for choice in sorted((choice for choice in choices if choice is not type(None)), key=lambda choice: choice is str):
        try:
            return parse_value(text, choice)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join(reasons))


def _parse_tuple(text: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    inner = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    words = [word.strip().strip("'\"") for word in inner.split(",")]
    if words[-1] == "":
        words.pop()  # "()" and "(64,)"
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(words)
    if len(words) != len(arguments):
        raise ValueError(f"it must have {len(arguments)} entries")
    return tuple(parse_value(word, argument) for word, argument in zip(words, arguments, strict=True))


def _parse_dict(text: str) -> dict[Any, Any]:
    value = _parse_literal(text)
    if not isinstance(value, dict):
        raise ValueError("write it like {'key': 1}, or set one key: FIELD.key=1")
    return value


def _parse_literal(text: str) -> Any:
    """What Python would read; a bare word is itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "null": None, "none": None}.get(text.lower(), text)
