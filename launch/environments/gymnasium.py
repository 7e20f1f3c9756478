"""Gymnasium environments, stepped one after another in the caller's thread.

`environment.name` is a registered id ("CartPole-v1"), an id that a module registers when it is imported
("ale_py:ALE/Pong-v5"), or a callable that makes one environment ("package.module:MyEnv"). `environment.options` are
keyword arguments of gymnasium.make or of that callable; `environment.threads` is not used.

Observation spaces: Box, Discrete, MultiBinary, MultiDiscrete, and Dict of them, nested too. Action spaces: Discrete,
and Box of floats. float64 and int64 become float32 and int32. A frame-stacking wrapper's stacks are stored whole.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agents.agent import TimeStep
from configs.experiment import EnvironmentConfig
from launch.environments import arrays
from launch.environments.episodes import EpisodeRecorder
from launch.environments.naming import check_call, load_callable, load_module, nearest
from launch.environments.protocol import Episode
from replay.spec import ArraySpec, EnvironmentSpec, ObservationSpec
from replay.steps import Array, Tree

_OF_MAKE = ("max_episode_steps", "disable_env_checker", "render_mode")  # options that gymnasium.make takes itself


def spec_of(config: EnvironmentConfig) -> EnvironmentSpec:
    """The spec alone: makes one environment and closes it."""
    environment = _maker(config)()
    try:
        return EnvironmentSpec(
            observation=_observation_spec(environment.observation_space),
            action=_action_converter(environment.action_space).spec,
        )
    finally:
        environment.close()


def make(config: EnvironmentConfig, num: int, seeds: Array, threads: int) -> "GymnasiumEnvironments":
    """Makes `num` environments; each gets its seed at the first reset."""
    del threads
    return GymnasiumEnvironments([_maker(config)] * num, seeds.tolist())


class GymnasiumEnvironments:
    """A SyncVectorEnv that resets on the step after an episode's end."""

    def __init__(self, makers: list[Callable[[], Any]], seeds: list[int]) -> None:
        # copy=False: _show() copies anyway
        self._vector: Any = SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        self._seeds: list[int] | None = seeds
        self._action = _action_converter(self._vector.single_action_space)
        self._spec = EnvironmentSpec(
            observation=_observation_spec(self._vector.single_observation_space), action=self._action.spec
        )
        self._num = len(makers)
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
        observation, _ = self._vector.reset(seed=self._seeds)
        self._seeds = None  # later episodes go on from the generators seeded now
        self._recorder.reset()
        self._ended = np.zeros(self._num, np.bool_)
        return TimeStep(
            observation=self._show(observation),
            reward=np.zeros(self._num, np.float32),
            first=np.ones(self._num, np.bool_),
            terminated=np.zeros(self._num, np.bool_),
            truncated=np.zeros(self._num, np.bool_),
        )

    def step(self, action: Array) -> TimeStep:
        """Steps all environments."""
        observation, reward, terminated, truncated, _ = self._vector.step(self._action(action))
        truncated = truncated & ~terminated  # a task that ends on the step of its limit has ended
        first, self._ended = self._ended, terminated | truncated
        reward = reward.astype(np.float32)
        self._recorder.add(reward)
        if self._ended.any():
            self._recorder.finish(self._ended)
        return TimeStep(self._show(observation), reward, first, terminated, truncated)

    def episodes(self) -> list[Episode]:
        """The episodes that finished since the last call."""
        return self._recorder.take()

    def close(self) -> None:
        """Closes the environments."""
        self._vector.close()

    def _show(self, observation: Any) -> Tree:
        """A copy of the vector's buffers as the spec has it."""
        spec = self._spec.observation
        if isinstance(spec, ArraySpec):
            return np.array(observation, spec.dtype)
        return {name: np.array(arrays.leaf(observation, name), array.dtype) for name, array in spec.items()}


def _maker(config: EnvironmentConfig) -> Callable[[], Any]:
    """A function that makes one environment, after checking the name and the options."""
    name, options = config.name, config.options
    module_name, separator, attribute = name.partition(":")
    if separator and attribute not in gymnasium.registry:
        module = load_module(module_name, name)  # may register ids
        if attribute not in gymnasium.registry or hasattr(module, attribute):
            constructor = load_callable(name)
            check_call(constructor, options, name)
            return lambda: _checked(constructor(**options), name)
    return _registered(attribute if separator else name, config)


def _checked(environment: Any, name: str) -> Any:
    if not isinstance(environment, gymnasium.Env):
        raise ValueError(
            f"environment.name={name!r} made a {type(environment).__name__}, not a gymnasium.Env. Derive it from "
            "gymnasium.Env, or set environment.library=dm_env if it is a dm_env.Environment."
        )
    return environment


def _registered(identifier: str, config: EnvironmentConfig) -> Callable[[], Any]:
    """A maker of a registered environment."""
    registered = gymnasium.registry.get(identifier)
    if registered is None or registered.entry_point is None:
        known = [key for key, value in gymnasium.registry.items() if value.entry_point is not None]
        raise ValueError(
            f"environment.name={config.name!r} is not registered with Gymnasium.{nearest(identifier, known)} List the "
            'registered ones with: python -c "import gymnasium; gymnasium.pprint_registry()". One that a package '
            'registers is named "package:id", one of your own "package.module:callable". For one of another library '
            "set environment.library=envpool or dm_env."
        )
    try:
        entry_point = registered.entry_point
        constructor = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        check_call(constructor, config.options, config.name, own=_OF_MAKE)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise _not_installed(config, error) from error

    def make_one() -> Any:
        try:
            return gymnasium.make(identifier, **config.options)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise _not_installed(config, error) from error

    return make_one


def _not_installed(config: EnvironmentConfig, error: Exception) -> ImportError:
    return ImportError(
        f"environment.name={config.name!r} needs a package that is not installed: {error}. Install it, or see whether "
        "EnvPool has this environment (environment.library=envpool)."
    )


def _observation_spec(space: Any) -> ObservationSpec:
    flat = arrays.flatten(_as_mapping(space))
    return arrays.observation_spec({name: _array_spec(inner, name) for name, inner in flat.items()})


def _as_mapping(space: Any) -> Any:
    """Dict spaces as dicts."""
    if isinstance(space, spaces.Dict):
        return {name: _as_mapping(inner) for name, inner in space.spaces.items()}
    return space


def _array_spec(space: Any, name: str) -> ArraySpec:
    what = f"Observation {name!r}" if name else "The observation"
    low: Any
    high: Any
    match space:
        case spaces.Box():
            low, high = space.low, space.high
        case spaces.Discrete():
            low, count = _range(space)
            high = low + count - 1
        case spaces.MultiBinary():
            low, high = 0, 1
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case _:
            raise ValueError(
                f"{what} is a {type(space).__name__} space: only Box, Discrete, MultiBinary, MultiDiscrete and Dict of "
                "them can be shown to an agent. Wrap the environment with gymnasium.wrappers.FlattenObservation."
            )
    return arrays.array_spec(space.shape, space.dtype, low, high, what)


def _range(space: Any) -> tuple[int, int]:
    """Start and count of a Discrete space."""
    return int(space.start), int(space.n)


def _action_converter(space: Any) -> arrays.ActionConverter:
    match space:
        case spaces.Discrete():
            start, count = _range(space)
            return arrays.DiscreteConverter(count, start=start, dtype=space.dtype)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return arrays.ContinuousConverter(space.shape, space.dtype, space.low, space.high)
        case _:
            raise ValueError(
                f"The action space is {space}: only Discrete, and Box of floats, can be given to an agent. Wrap the "
                "environment with a gymnasium.ActionWrapper that translates."
            )
