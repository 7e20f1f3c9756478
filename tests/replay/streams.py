"""Random streams of rows for tests, and the sequences that must come back."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from replay.spec import ActionSpec, ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec, ObservationSpec
from replay.steps import Steps

PIXELS = ArraySpec(shape=(4, 6, 5), dtype="uint8", stacked=True)
FLAT = ArraySpec(shape=(3,), dtype="float32")
OBSERVATIONS: dict[str, ObservationSpec] = {
    "flat": FLAT,
    "pixels": PIXELS,
    "dict": {"eye/pixels": PIXELS, "few": ArraySpec(shape=(2, 7), dtype="float32", stacked=True), "eye/flat": FLAT},
}
EXTRAS = {"logits": ArraySpec(shape=(2,), dtype="float32"), "mode": ArraySpec(shape=(), dtype="int8")}
STATE = {"lstm": (ArraySpec(shape=(3,), dtype="float32"), ArraySpec(shape=(2, 2), dtype="float32"))}


@dataclasses.dataclass
class Stream:
    """T rows of B environments, and a state beside each."""

    rows: list[Steps]  # [B, ...] each
    states: list[Any]  # [B, ...] each

    def sequence(self, environment: int, start: int, length: int) -> Steps:
        """The rows of one environment, [L, ...]."""
        chosen = self.rows[start : start + length]
        return map_rows(lambda *leaves: np.stack([leaf[environment] for leaf in leaves]), *chosen)


def map_rows(function: Callable[..., Any], *rows: Steps) -> Steps:
    """Applies a function leaf by leaf."""

    def merge(*values: Any) -> Any:
        if isinstance(values[0], Mapping):
            return {key: function(*(value[key] for value in values)) for key in values[0]}
        return function(*values)

    return Steps(*(merge(*leaves) for leaves in zip(*rows, strict=True)))


def environment_spec(observation: str, continuous: bool = False) -> EnvironmentSpec:
    """One of the kinds of observation."""
    action: ActionSpec = DiscreteAction(count=3)
    if continuous:
        action = ContinuousAction(size=2, minimum=(-1.0, -1.0), maximum=(1.0, 1.0))
    return EnvironmentSpec(observation=OBSERVATIONS[observation], action=action)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Any values of the dtype."""
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 120, shape).astype(dtype)


def random_stream(
    seed: int, environment: EnvironmentSpec, rows: int, environments: int, *, end: float = 0.2, state: bool = True
) -> Stream:
    """Rows as an auto-resetting environment gives them: ends at random, terminated and truncated apart."""
    rng = np.random.default_rng(seed)
    b, observation = environments, environment.observation
    specs = {"": observation} if isinstance(observation, ArraySpec) else observation
    first, over = np.ones(b, bool), np.zeros(b, bool)
    stacks: dict[str, Any] = dict.fromkeys(specs)
    stream = Stream([], [])
    for index in range(rows):
        seen = {}
        for key, spec in specs.items():
            fresh = random_array(rng, (b, *spec.shape), spec.dtype)
            if spec.stacked:
                newest = fresh[:, -1:]
                moved = (
                    newest.repeat(spec.shape[0], 1) if index == 0 else np.concatenate([stacks[key][:, 1:], newest], 1)
                )
                moved[first] = newest[first]  # a reset fills the stack
                fresh = stacks[key] = moved
            seen[key] = fresh
        ended = ~over & (rng.random(b) < end)
        terminated = ended & (rng.random(b) < 0.5)
        action = environment.action_array
        stream.rows.append(
            Steps(
                observation=seen[""] if isinstance(observation, ArraySpec) else seen,
                action=random_array(rng, (b, *action.shape), action.dtype),
                reward=random_array(rng, (b,), "float32"),
                first=first,
                terminated=terminated,
                truncated=ended & ~terminated,
                valid=~over,
                version=np.full(b, index, np.int32),
                extras={name: random_array(rng, (b, *spec.shape), spec.dtype) for name, spec in EXTRAS.items()},
            )
        )
        lstm = tuple(random_array(rng, (b, *spec.shape), spec.dtype) for spec in STATE["lstm"])
        stream.states.append({"lstm": lstm} if state else ())
        first, over = over, ended  # the row after an end is invalid, the one after that is first
    return stream


def assert_steps_equal(got: Steps, want: Steps) -> None:
    """Every leaf is equal, bit by bit."""
    for name, left, right in zip(Steps._fields, got, want, strict=True):
        pairs = {key: (left[key], right[key]) for key in right} if isinstance(right, Mapping) else {"": (left, right)}
        for key, (a, b) in pairs.items():
            np.testing.assert_array_equal(np.asarray(a), b, err_msg=f"{name}/{key}")
