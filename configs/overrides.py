"""Changes an experiment the way a command line says: `--set learner.batch_size=256`."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from agents.registry import config_type
from configs.experiment import Experiment
from configs.fields import describe_type, hints_of, list_fields
from configs.values import parse_value


class OverrideError(ValueError):
    """An override that names no field, or a value that its field can't take."""


def apply_overrides(experiment: Experiment, overrides: Sequence[str]) -> Experiment:
    """Returns the experiment with all of `overrides` ("path=value") applied at once; of two for one path the last wins.

    `agent=NAME` comes first wherever it stands; see `switch_agent`. One key of a dict field is set by its own path:
    `environment.options.frame_skip=4`.

    Raises:
        OverrideError: for an unknown path (names the nearest ones) or a value of the wrong type.
        ValueError: where the config itself refuses the combination.
    """
    changes = dict(_split(override) for override in overrides)
    if "agent" in changes:
        experiment = switch_agent(experiment, changes.pop("agent"))
    tree: dict[str, Any] = {}
    for path, text in changes.items():
        _check_path(experiment, path)
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise OverrideError(f"{path} is set beside one of its parents; set either the one or the other.")
        if isinstance(node.get(leaf), dict):
            raise OverrideError(f"{path} is set beside one of its keys; set either the one or the other.")
        node[leaf] = text
    changed = _rebuild(experiment, tree, "")
    assert isinstance(changed, Experiment)
    return changed


def switch_agent(experiment: Experiment, agent: str) -> Experiment:
    """The same experiment with another agent, at the defaults of that agent's config.

    Where that config extends the present one, the fields that they share keep their values.
    """
    if agent == experiment.agent:
        return experiment
    try:
        config = config_type(agent)
    except ValueError as error:
        raise OverrideError(str(error)) from error
    present, kept = experiment.agent_config, {}
    if dataclasses.is_dataclass(present) and issubclass(config, type(present)):
        kept = {field.name: getattr(present, field.name) for field in dataclasses.fields(present)}
    return dataclasses.replace(experiment, agent=agent, agent_config=config(**kept))


def _split(override: str) -> tuple[str, str]:
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise OverrideError(f"{override!r} is not of the form field=value, e.g. learner.batch_size=256.")
    return path.strip(), text.strip()


def _check_path(experiment: Experiment, path: str) -> None:
    """Refuses a path that leads nowhere, or to a whole group of fields."""
    fields = {field.path: field for field in list_fields(experiment)}
    if path in fields or any(
        isinstance(field.value, dict) and path.startswith(f"{field.path}.") for field in fields.values()
    ):
        return
    inside = [field for field in fields if field.startswith(f"{path}.")]
    if inside:
        raise OverrideError(f"{path} is a group of fields; set one of {', '.join(inside)}.")
    near = _nearest(path, list(fields))
    hint = f"Did you mean {' or '.join(near)}?" if near else "--help lists all fields."
    raise OverrideError(
        f"There is no field {path} in experiment {experiment.name!r} (agent {experiment.agent}). {hint}"
    )


def _nearest(path: str, candidates: list[str]) -> list[str]:
    """Paths like this one: those that end alike first, since the group is what people forget."""
    last = path.split(".")[-1]
    same_end = [candidate for candidate in candidates if candidate.split(".")[-1] == last]
    ends = {candidate.split(".")[-1] for candidate in candidates}
    similar_end = [
        candidate
        for end in difflib.get_close_matches(last, ends, n=2, cutoff=0.7)
        for candidate in candidates
        if candidate.split(".")[-1] == end
    ]
    found = dict.fromkeys(same_end + difflib.get_close_matches(path, candidates, n=2, cutoff=0.75) + similar_end)
    ranked = sorted(found, key=lambda candidate: -difflib.SequenceMatcher(None, path, candidate).ratio())
    return ranked[:3]


def _rebuild(config: Any, tree: Mapping[str, Any], prefix: str) -> Any:
    """Replaces all fields of one dataclass together, so that it judges only the final combination."""
    if not tree:
        return config
    values = {}
    for name, change in tree.items():
        path, current = f"{prefix}{name}", getattr(config, name)
        annotation = hints_of(type(config))[name]
        if dataclasses.is_dataclass(current):
            values[name] = _rebuild(current, change, f"{path}.")
        elif isinstance(change, dict):  # keys of a dict field
            values[name] = _merge(current, change)
        else:
            values[name] = _parse(path, change, annotation)
    return dataclasses.replace(config, **values)


def _merge(current: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(current)
    for key, change in changes.items():
        if isinstance(change, dict):
            below = merged.get(key)
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, change)
        else:
            merged[key] = parse_value(change, Any)
    return merged


def _parse(path: str, text: str, annotation: Any) -> Any:
    try:
        return parse_value(text, annotation)
    except ValueError as error:
        raise OverrideError(f"{path}={text}: got {text!r}, want {describe_type(annotation)}: {error}.") from None
