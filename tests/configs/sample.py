"""An agent's config with a field of every kind, for the tests of what is done with configs."""

import dataclasses
from typing import Any, Literal

from configs.experiment import Experiment
from replay.spec import ReplaySpec


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """What several agents' configs might share."""

    discount: float = 0.99  # of the next step's value


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SampleConfig(Common):
    """A field of every kind."""

    replay: ReplaySpec = ReplaySpec()
    widths: tuple[int, ...] = (64, 64)  # of the hidden layers
    interval: tuple[float, float] = (-1.0, 1.0)
    # Above the field,
    # on two lines.
    torso: Literal["mlp", "cnn"] = "mlp"
    dueling: bool = True  # whether to
    clip: float | None = None  # none: not clipped
    steps: int = 1_000
    either: tuple[int, ...] | str = "auto"  # by hand, or "auto"
    anything: Any = None
    limit: float = (
        float("inf")  # after a bracket
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LargerConfig(SampleConfig):
    """One that extends another agent's."""

    atoms: int = 51  # of each value


def make_larger_agent(config: LargerConfig, environment: Any) -> LargerConfig:
    """Stands for the factory of an agent that is built on another."""
    return config


def make_agent(config: SampleConfig, environment: Any) -> SampleConfig:
    """Stands for an agent's factory."""
    return config


def make_agent_without_annotation(config, environment):
    """Doesn't say what it takes."""
    return config


def sample_experiment() -> Experiment:
    """Every default."""
    return Experiment(name="sample", agent="tests.configs.sample:make_agent", agent_config=SampleConfig())
