"""What an agent asks of its replay, and what an environment shows, as plain data.

Nothing here imports Reverb, TensorFlow or JAX: agents and configs build on this module.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

Sampler = Literal["uniform", "prioritized"]
Remover = Literal["fifo", "lifo", "min_heap"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ArraySpec:
    """Shape and dtype of one array, without batch and time axes."""

    shape: tuple[int, ...]
    dtype: str  # a numpy dtype's name, e.g. "float32"
    minimum: float = -math.inf
    maximum: float = math.inf
    stacked: bool = False  # axis 0 holds consecutive frames, the newest last: frames are then stored once

    @property
    def nbytes(self) -> int:
        """Bytes of one such array."""
        return int(math.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteAction:
    """One of `count` actions, int32."""

    count: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ContinuousAction:
    """A float32 vector of `size`, each entry within [minimum, maximum]."""

    size: int
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]


ActionSpec = DiscreteAction | ContinuousAction
ObservationSpec = ArraySpec | Mapping[str, ArraySpec]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSpec:
    """What one environment shows and takes."""

    observation: ObservationSpec
    action: ActionSpec

    @property
    def action_array(self) -> ArraySpec:
        """The action as it is stored."""
        match self.action:
            case DiscreteAction():
                return ArraySpec(shape=(), dtype="int32")
            case ContinuousAction(size=size):
                return ArraySpec(shape=(size,), dtype="float32")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySpec:
    """How experience is cut into items, kept and drawn. Counts are totals over all shards.

    An item is a sequence of `sequence_length` consecutive rows of one environment: `burn_in` rows that only warm up a
    recurrent state, `trace` rows that are trained on, and `n_step` rows to bootstrap from. Of the very last row only
    the observation is used. Sequences run across episode ends; rows carry `first`, `terminated`, `truncated`, `valid`.

    Raises:
        ValueError: for a combination that can't work; the message names the field, the value, why and the nearest
            value that works.
    """

    burn_in: int = 0  # rows
    trace: int = 20  # rows
    n_step: int = 1  # rows
    period: int = 20  # rows between the starts of two stored sequences
    queue: bool = False  # each item is drawn exactly once, in order; writers wait when it is full
    max_size: int = 100_000  # items
    min_size: int = 1_000  # items before the first sample; unused by a queue
    sampler: Sampler = "uniform"  # unused by a queue
    remover: Remover = "fifo"  # unused by a queue
    priority_exponent: float = 0.6  # alpha of Schaul et al. (2016); used by sampler="prioritized"
    samples_per_insert: float = 0.0  # 0: learner and actors run free; else their ratio is kept
    error_buffer: float = 0.0  # items' worth of slack, in samples, around samples_per_insert

    @property
    def sequence_length(self) -> int:
        """Rows of an item, the bootstrap rows included."""
        return self.burn_in + self.trace + self.n_step

    @property
    def prioritized(self) -> bool:
        """Whether samples follow priorities."""
        return self.sampler == "prioritized" and not self.queue

    def __post_init__(self) -> None:
        for field, least in (("burn_in", 0), ("trace", 1), ("n_step", 1), ("period", 1), ("max_size", 1)):
            value: Any = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"replay.{field}={value!r} must be an integer >= {least}. Set {field}={least} or more."
                )
        if self.period > self.trace:
            raise ValueError(
                f"replay.period={self.period} must be <= trace={self.trace}: with a longer period some steps are never "
                f"trained on. Set period={self.trace} or less."
            )
