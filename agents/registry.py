"""Agents by name. An agent from outside is named by its import path instead, e.g. "my_package.my_module:make_agent"."""

import dataclasses
import difflib
import importlib
import inspect
import typing
from collections.abc import Callable
from typing import Any

from agents import collector

MAKERS = {
    "apex_dqn": "agents.apex_dqn.agent:make_agent",
    "impala": "agents.impala.agent:make_agent",
    "ppo": "agents.ppo.agent:make_agent",
    "r2d2": "agents.r2d2.agent:make_agent",
}


def resolve(agent: str) -> Callable[..., Any]:
    """The function make_agent(config, environment) of a registered name or an import path. Imports its module.

    Raises:
        ValueError: an unknown name, or a path that leads to no function; names the nearest ones.
    """
    path = MAKERS.get(agent, agent)
    module_name, colon, function_name = path.partition(":")
    if not colon:
        near = difflib.get_close_matches(agent, MAKERS, n=2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"agent={agent!r} is not one of {', '.join(MAKERS)}, and no import path either.{hint} An agent of your own "
            "is named as agent=my_package.my_module:make_agent."
        )
    try:
        with collector.held():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # a module that the agent itself imports is missing
        raise ValueError(
            f"agent={agent!r}: there is no module {error.name!r} on the import path. Run the command where "
            f"{module_name.split('.')[0]} can be imported, e.g. with PYTHONPATH=. or after installing it."
        ) from error
    made = getattr(module, function_name, None)
    if not callable(made):
        near = difflib.get_close_matches(function_name, vars(module), n=2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"agent={agent!r}: {module_name} has no function {function_name!r}.{hint} Set agent to one that takes a "
            "config and an environment's spec and makes an Agent."
        )
    return made  # type: ignore[no-any-return]


def config_type(agent: str) -> type[Any]:
    """The config dataclass of an agent: what the first parameter of its make_agent is annotated with.

    Raises:
        ValueError: for an unknown agent, or one that doesn't say which config it takes.
    """
    make_agent = resolve(agent)
    first = next(iter(inspect.signature(make_agent).parameters), "")
    found = typing.get_type_hints(make_agent).get(first)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ValueError(
            f"agent={agent!r}: the first parameter of its make_agent is annotated with {found!r}, so its config isn't "
            "known. Annotate it with the agent's config dataclass."
        )
    return found
