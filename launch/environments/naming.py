"""Names from a config turned into things, with errors that say what to type instead."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """The sentence that suggests the names most like `name`, "" if none is."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(by_folded[match]) for match in close)}?" if close else ""


def check_options(options: Mapping[str, Any], known: Collection[str], name: str) -> None:
    """Raises ValueError for an option that the constructor of environment `name` doesn't take."""
    for option in options:
        if option not in known:
            takes = ", ".join(sorted(known)) or "none"
            raise ValueError(
                f"environment.options has {option!r}, which {name} doesn't take.{nearest(option, known)} "
                f"Its options: {takes}."
            )


def check_call(
    function: Callable[..., Any], options: Mapping[str, Any], name: str, *, own: Collection[str] = ()
) -> None:
    """Raises ValueError for an option that `function` has no parameter for; `own` are taken before it is called."""
    parameters = parameters_of(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # it says itself what it doesn't know
    named = {
        key for key, value in parameters.items() if value.kind in (value.POSITIONAL_OR_KEYWORD, value.KEYWORD_ONLY)
    }
    check_options(options, named | set(own), name)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Parameters by name; none where Python can't tell, as for some C functions."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


def load_callable(name: str) -> Callable[..., Any]:
    """What "package.module:callable" names.

    Raises:
        ImportError: the module can't be imported; says whether it or something it imports is missing.
        ValueError: the name has another form, or the module has no such callable.
    """
    module_name, separator, attribute = name.partition(":")
    if not (separator and module_name and attribute):
        raise ValueError(
            f"environment.name={name!r} must name a callable that makes one environment, as "
            '"package.module:callable". Set environment.name="my_package.my_module:make_environment".'
        )
    module = load_module(module_name, name)
    found = getattr(module, attribute, None)
    if not callable(found):
        own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == module_name}
        known = [key for key, value in own.items() if callable(value) and not key.startswith("_")]
        raise ValueError(
            f"environment.name={name!r}: module {module_name} ({module.__file__}) has no callable {attribute!r}."
            f"{nearest(attribute, known)}"
        )
    return found  # type: ignore[no-any-return]


def load_module(module_name: str, name: str) -> Any:
    """Imports the module part of environment.name=`name`; see load_callable for its errors."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise ImportError(
                f"environment.name={name!r}: no module {error.name!r} is on Python's path. Start from the folder that "
                f"holds it (this is {os.getcwd()}), put that folder in PYTHONPATH, or install its package into "
                f"{sys.prefix}."
            ) from error
        raise ImportError(
            f"environment.name={name!r}: {module_name} was found, but it imports {error.name!r}, which is not "
            f"installed. Install it into {sys.prefix}."
        ) from error
    except ImportError as error:
        raise ImportError(f"environment.name={name!r}: importing {module_name} failed: {error}") from error
