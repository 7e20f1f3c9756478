"""dm_env environments, stepped one after another in the caller's thread.

`environment.name` is a callable that makes one environment ("package.module:make_environment") and
`environment.options` its keyword arguments. If it has a parameter `seed`, each environment gets its own; dm_env has no
other way to seed, so without it episodes can't be repeated. `environment.threads` is not used.

Observations: arrays of numbers, and dicts of them, nested too. Actions: an integer in a range (DiscreteArray), or an
array of floats. An end with discount 0 terminated, any other end was truncated, as dm_env.termination and
dm_env.truncation have it; discounts before the end are not looked at.
"""

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
from absl import logging
from dm_env import specs

from agents.agent import TimeStep
from configs.experiment import EnvironmentConfig
from launch.environments import arrays
from launch.environments.episodes import EpisodeRecorder
from launch.environments.naming import check_call, load_callable, parameters_of
from launch.environments.protocol import Episode
from replay.spec import ArraySpec, EnvironmentSpec
from replay.steps import Array


def spec_of(config: EnvironmentConfig) -> EnvironmentSpec:
    """The spec alone: makes one environment and closes it."""
    environment = _maker(config)(0)
    try:
        return EnvironmentSpec(
            observation=arrays.observation_spec(_observation_specs(environment)),
            action=_action_converter(environment.action_spec()).spec,
        )
    finally:
        environment.close()


def make(config: EnvironmentConfig, num: int, seeds: Array, threads: int) -> "DmEnvironments":
    """Makes `num` environments, each with its seed if the maker takes one."""
    del num, threads
    maker = _maker(config)
    return DmEnvironments([maker(seed) for seed in seeds.tolist()])


class DmEnvironments:
    """Several dm_env environments that reset on the step after an episode's end."""

    def __init__(self, environments: list[Any]) -> None:
        self._environments = environments
        self._action = _action_converter(environments[0].action_spec())
        self._spec = EnvironmentSpec(
            observation=arrays.observation_spec(_observation_specs(environments[0])), action=self._action.spec
        )
        self._num = len(environments)
        self._ended = np.zeros(self._num, np.bool_)
        self._recorder = EpisodeRecorder(self._num)

    @property
    def spec(self) -> EnvironmentSpec:
        """What one environment shows and takes."""
        return self._spec

    @property
    def num(self) -> int:
        """B, the number of environments."""
        return self._num

    def reset(self) -> TimeStep:
        """Begins a new episode everywhere."""
        self._recorder.reset()
        return self._show([environment.reset() for environment in self._environments])

    def step(self, action: Array) -> TimeStep:
        """Steps all environments."""
        shown = [
            environment.reset() if ended else environment.step(one)
            for environment, ended, one in zip(self._environments, self._ended, self._action(action), strict=True)
        ]
        timestep = self._show(shown)
        self._recorder.add(timestep.reward)
        if self._ended.any():
            self._recorder.finish(self._ended)
        return timestep

    def episodes(self) -> list[Episode]:
        """The episodes that finished since the last call."""
        return self._recorder.take()

    def close(self) -> None:
        """Closes the environments."""
        environments, self._environments = self._environments, []
        for environment in environments:
            environment.close()

    def _show(self, shown: list[dm_env.TimeStep]) -> TimeStep:
        """dm_env's timesteps as one of ours."""
        last = np.array([one.last() for one in shown])
        terminated = np.array([one.last() and not np.any(one.discount) for one in shown])
        self._ended = last
        return TimeStep(
            observation=arrays.stack_observations([one.observation for one in shown], self._spec.observation),
            reward=np.array([0.0 if one.first() else one.reward for one in shown], np.float32),
            first=np.array([one.first() for one in shown]),
            terminated=terminated,
            truncated=last & ~terminated,
        )


def _maker(config: EnvironmentConfig) -> Callable[[int], Any]:
    """A function that makes one environment with a seed, after checking the name and the options."""
    name, options = config.name, config.options
    constructor = load_callable(name)
    if "seed" in options:
        raise ValueError("environment.options can't hold 'seed': every environment gets its own. Set run.seed instead.")
    check_call(constructor, options, name)
    seeded = "seed" in parameters_of(constructor)
    if not seeded:
        logging.warning("environment.name=%r takes no argument `seed`, so its episodes can't be repeated.", name)

    def make_one(seed: int) -> Any:
        environment = constructor(**options, **({"seed": seed} if seeded else {}))
        if not isinstance(environment, dm_env.Environment):
            raise ValueError(
                f"environment.name={name!r} made a {type(environment).__name__}, not a dm_env.Environment. Derive it "
                "from that, or set environment.library=gymnasium if it is a gymnasium.Env."
            )
        return environment

    return make_one


def _observation_specs(environment: Any) -> dict[str, ArraySpec]:
    return {name: _array_spec(spec, name) for name, spec in arrays.flatten(environment.observation_spec()).items()}


def _array_spec(spec: Any, name: str) -> ArraySpec:
    what = f"Observation {name!r}" if name else "The observation"
    match spec:
        case specs.BoundedArray():
            low, high = spec.minimum, spec.maximum
        case specs.Array():
            low, high = -np.inf, np.inf
        case _:
            raise ValueError(
                f"{what} has a spec of type {type(spec).__name__}: only arrays and dicts of arrays can be shown to an "
                "agent. Wrap the environment with one that shows a dict."
            )
    return arrays.array_spec(spec.shape, spec.dtype, low, high, what)


def _action_converter(spec: Any) -> arrays.ActionConverter:
    match spec:
        case specs.BoundedArray(shape=()) if np.issubdtype(spec.dtype, np.integer):  # DiscreteArray is one
            low, high = int(spec.minimum), int(spec.maximum)
            return arrays.DiscreteConverter(high - low + 1, start=low, dtype=spec.dtype)
        case specs.BoundedArray() if np.issubdtype(spec.dtype, np.floating):
            return arrays.ContinuousConverter(spec.shape, spec.dtype, spec.minimum, spec.maximum)
        case specs.Array() if np.issubdtype(spec.dtype, np.floating):
            return arrays.ContinuousConverter(spec.shape, spec.dtype, -np.inf, np.inf)
        case _:
            raise ValueError(
                f"The action spec is {spec}: only one integer in a range, or an array of floats, can be given to an "
                "agent. Wrap the environment with one that translates."
            )
