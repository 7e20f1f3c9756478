"""What all commands that take an experiment share: --config, --set, and a --help that says everything."""

import os
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging

from configs.experiment import Experiment
from configs.fields import list_fields
from configs.overrides import apply_overrides
from configs.presets import PRESETS, preset
from launch.run_directory import LATEST, RunDirectory


def define_flags() -> None:
    """--config and --set. Called by a command's own module when it runs as a program."""
    flags.DEFINE_string("config", None, "The preset to begin with; --help lists them.", short_name="c")
    flags.DEFINE_multi_string("set", [], "A field and its value, e.g. --set learner.batch_size=256 run.seed=1.")


def parse(argv: Sequence[str]) -> list[str]:
    """Parses absl flags wherever they stand; what is left (field=value) counts as given to --set.

    Raises:
        SystemExit: for a flag that isn't one, or something left that is no field=value.
    """
    flags.FLAGS.set_gnu_getopt(True)
    left = app.parse_flags_with_usage(list(argv))
    stray = [word for word in left[1:] if "=" not in word]
    if stray:
        raise SystemExit(f"{stray[0]!r} is neither a flag nor a field=value. Try --help.")
    return left


def quieten() -> None:
    """Before a command loads JAX and TensorFlow itself: what they have to say of this machine isn't what was asked."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.set_verbosity(logging.WARNING)


def experiment_of(config: str | None, overrides: Sequence[str]) -> Experiment:
    """The experiment that the command line names.

    Raises:
        ValueError: an unknown preset, field or value; the message names the nearest ones.
    """
    if config is None:
        raise ValueError(
            f"--config is missing. Choose one of {', '.join(PRESETS)}, e.g. --config={next(iter(PRESETS))}."
        )
    return apply_overrides(preset(config), overrides)


def run_of(arguments: Sequence[str], command: str) -> RunDirectory:
    """The run that a command's only argument names, runs/latest without one.

    Raises:
        app.UsageError: more than one argument.
    """
    if len(arguments) > 2:
        raise app.UsageError(f"one run's folder at most, e.g. python -m {command} runs/{LATEST}")
    return RunDirectory(Path(arguments[1] if len(arguments) == 2 else f"runs/{LATEST}").resolve())


def help_text(command: str, purpose: str, extra: Sequence[str] = ()) -> str:
    """The whole --help: usage, presets, and every field with its default and meaning."""
    lines = [
        purpose,
        "",
        f"usage: python -m {command} --config=PRESET [--set field=value ...]",
        *extra,
        "",
        "presets:",
        *(f"  {name:<18} {make.__doc__}" for name, make in PRESETS.items()),
        "",
        "fields, with the defaults of apex_cartpole (agent_config's are those of its agent):",
    ]
    for field in list_fields(preset("apex_cartpole")):
        lines.append(f"  {field.path}={field.value!r}".ljust(52) + f"  {field.type}; {field.comment}")
    return "\n".join(lines)
