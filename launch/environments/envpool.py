"""EnvPool: environments in C++ threads.

Atari (e.g. "Pong-v5") runs as the field compares it, unless `options` say otherwise (EnvPool's names in brackets):
four frames a step with the last two maximised (frame_skip=4), the newest four 84x84 grey frames as [4, 84, 84] uint8
(stack_num=4), up to 30 no-ops at the start (noop_max=30), FIRE pressed at the start where a game needs it
(use_fire_reset), no sticky actions (repeat_action_probability=0.0; 0.25 is Machado et al., 2018), the minimal action
set (full_action_space=False), at most 27,000 steps = 30 minutes of play (max_episode_steps), the reward unclipped
(reward_clip=False) and a lost life not an end (episodic_life=False). Mnih et al. (2015) train with
`reward_clip=True, episodic_life=True`; `episodes()` reports raw rewards and whole games then too.

What was found of EnvPool 0.8.4, and what is done about it:
- `truncated` is set at an end where elapsed_step has reached max_episode_steps, in every family (tested); so a task
  that ends on the very step of the limit counts as truncated. Atari tells (info["terminated"]) and is put right here.
- Procgen, Catch, Blackjack and CliffWalking ignore max_episode_steps, yet label by it: the option is refused for them.
- Environment i is seeded with seed + i, so pools with neighbouring seeds would share environments; see the factory.
- With episodic_life, frames of the lost life stay in the stack after `first`; they are replaced by the new first frame,
  as at any other beginning.
- Bounds it doesn't know are given as the smallest and largest positive double; they become -inf and inf.
- Arrays come fresh from C++ each step: they are given on without a copy.
- Destroying a pool hangs for ever, with the interpreter's lock, where the thread that makes its buffers is just behind
  the steps: it sees the end before it has made the buffer that the destructor takes. See `_destroy`.
"""

import ctypes
import dataclasses
import math
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import envpool
import numpy as np
from absl import logging

from agents.agent import TimeStep
from configs.experiment import EnvironmentConfig
from launch.environments import arrays
from launch.environments.episodes import EpisodeRecorder
from launch.environments.naming import check_options, nearest
from launch.environments.protocol import Episode
from replay.spec import ArraySpec, EnvironmentSpec
from replay.steps import Array, Tree

# Fields of EnvPool's config that aren't the user's, and what sets them.
_RESERVED = {
    "num_envs": "environment.per_actor",
    "batch_size": "environment.per_actor",
    "num_threads": "environment.threads",
    "seed": "run.seed",
    "task": "environment.name",
    "base_path": None,
    "gym_reset_return_info": None,
    "max_num_players": None,
    "reward_threshold": None,
}
_WITHOUT_LIMIT = ("Catch-v0", "Blackjack-v1", "CliffWalking-v0")  # they ignore max_episode_steps
_UNBOUNDED = 3e38  # bounds as wide as float32 mean none
_END_SECONDS = 5.0  # that a pool's threads have to come to rest
_LOOKS = 3  # at each thread, a millisecond apart: one may sleep for a moment in the middle of its work


def spec_of(config: EnvironmentConfig) -> EnvironmentSpec:
    """The spec alone; starts no thread."""
    return _convert(_native_spec(config))


def make(config: EnvironmentConfig, num: int, seeds: Array, threads: int) -> "EnvPoolEnvironments":
    """Makes a pool whose environments are seeded with seeds[0], seeds[0] + 1, ..."""
    return EnvPoolEnvironments(config, num, int(seeds[0]), threads)


def make_asynchronous(
    config: EnvironmentConfig, num: int, batch_size: int, seeds: Array, threads: int
) -> "AsynchronousEnvPool":
    """Makes a pool as make() does, of which each call gives the `batch_size` environments that are ready first."""
    return AsynchronousEnvPool(config, num, int(seeds[0]), threads, batch_size)


class _Pool:
    """An EnvPool, and what it shows as the protocols have it."""

    def __init__(self, config: EnvironmentConfig, num: int, seed: int, threads: int, batch_size: int) -> None:
        native = _native_spec(config)
        self._spec = _convert(native)
        self._num = num
        self._action = _action_converter(native)
        atari = _family(config.name) == "atari"
        self._raw_reward = atari  # info["reward"], whatever reward_clip is
        self._lives = atari and bool(native.config.episodic_life)
        self._recorder = EpisodeRecorder(num)
        self._ended = np.zeros(num, np.bool_)
        self._age = np.zeros(num, np.int32)  # steps since the episode's first frame; kept with episodic_life only
        base = seed % (2**31 - num)  # EnvPool adds 0..num-1 and wants an int32
        threads_before = _threads()
        self._pool = envpool.make(
            config.name,
            env_type="gymnasium",
            num_envs=num,
            batch_size=batch_size,
            num_threads=min(threads, num),
            seed=base,
            **config.options,
        )
        self._end = weakref.finalize(self, _destroy, self._pool, tuple(_threads() - threads_before))

    @property
    def spec(self) -> EnvironmentSpec:
        """What one environment shows and takes."""
        return self._spec

    @property
    def num(self) -> int:
        """B, the number of environments."""
        return self._num

    def episodes(self) -> list[Episode]:
        """The episodes that finished since the last call."""
        return self._recorder.take()

    def close(self) -> None:
        """Ends the pool's threads. Waits for what they are at, 5 s at most."""
        self._pool = None
        self._end()

    def _timestep(
        self, observation: Tree, reward: Array, terminated: Array, truncated: Array, info: dict[str, Array], ids: Any
    ) -> TimeStep:
        """What the pool answered for the environments `ids`, an index."""
        ended = terminated | truncated
        first = np.array(self._ended[ids])  # a copy, also of a slice
        self._ended[ids] = ended
        self._recorder.add(info["reward"] if self._raw_reward else reward, ids)
        if np.count_nonzero(ended):  # a third of the cost of .any()
            terminated, truncated = self._finish(ended, terminated, truncated, info)
        return TimeStep(self._show(observation, first, ids), reward, first, terminated, truncated)

    def _finish(
        self, finished: Array, terminated: Array, truncated: Array, info: dict[str, Array]
    ) -> tuple[Array, Array]:
        """Reports the finished episodes; gives back the flags, put right."""
        if self._raw_reward:
            game_over = info["terminated"] != 0
            terminated, truncated = terminated | (truncated & game_over), truncated & ~game_over
            finished = finished & (game_over | truncated)  # else a life was lost, and the game goes on
        self._recorder.finish(finished, info["elapsed_step"], info["env_id"])
        return terminated, truncated

    def _show(self, observation: Tree, first: Array, ids: Any) -> Tree:
        """The observation as the spec has it."""
        spec = self._spec.observation
        if not isinstance(spec, ArraySpec):
            return {name: arrays.leaf(observation, name).astype(one.dtype, copy=False) for name, one in spec.items()}
        if self._lives:
            age = np.where(first, 0, self._age[ids] + 1)
            self._age[ids] = age
            _repeat_first_frame(observation, age)
        return observation.astype(spec.dtype, copy=False)


class EnvPoolEnvironments(_Pool):
    """A synchronous EnvPool: each step waits for all environments."""

    def __init__(self, config: EnvironmentConfig, num: int, seed: int, threads: int) -> None:
        super().__init__(config, num, seed, threads, batch_size=num)

    def reset(self) -> TimeStep:
        """Begins a new episode everywhere; with episodic_life, possibly a new life of the same game."""
        observation, _ = self._pool.reset()
        self._recorder.reset()
        self._ended = np.zeros(self._num, np.bool_)
        none, first = np.zeros(self._num, np.bool_), np.ones(self._num, np.bool_)
        return TimeStep(
            observation=self._show(observation, first, slice(None)),
            reward=np.zeros(self._num, np.float32),
            first=first,
            terminated=none,
            truncated=none.copy(),
        )

    def step(self, action: Array) -> TimeStep:
        """Steps all environments."""
        observation, reward, terminated, truncated, info = self._pool.step(self._action(action))
        return self._timestep(observation, reward, terminated, truncated, info, slice(None))


class AsynchronousEnvPool(_Pool):
    """An EnvPool that gives the environments which were ready first, while the others step."""

    def start(self) -> None:
        """Begins a new episode everywhere."""
        self._ended[:] = True  # so that what comes first is `first`
        self._pool.async_reset()

    def receive(self) -> tuple[TimeStep, Array]:
        """What the environments that were ready first show, [M, ...], and which these are, [M] int32."""
        observation, reward, terminated, truncated, info = self._pool.recv()
        ids = info["env_id"]
        return self._timestep(observation, reward, terminated, truncated, info, ids), ids

    def send(self, action: Array, ids: Array) -> None:
        """Steps the environments `ids` [M] with actions [M, ...]; returns at once."""
        self._pool.send(self._action(action), ids)


def _threads() -> set[Path]:
    """The threads of this process, as the kernel shows them."""
    return set(Path("/proc/self/task").iterdir())


def _destroy(pool: Any, threads: Sequence[Path]) -> None:
    """Lets go of a pool once its threads are at rest: then all its buffers are made. One whose threads don't come to
    rest is kept for ever, as destroying it may hang.
    """
    deadline, seen = time.monotonic() + _END_SECONDS, 0
    while seen < _LOOKS:
        if time.monotonic() > deadline:
            logging.warning("An EnvPool's threads didn't come to rest within %.0f s: it is left alone.", _END_SECONDS)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
            return
        seen = seen + 1 if all(map(_asleep, threads)) else 0
        time.sleep(0.001)


def _asleep(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "S"
    except OSError:
        return True  # it has ended


def _repeat_first_frame(stack: Array, age: Array) -> None:
    """Overwrites, in stack [B, S, H, W], the frames from before the beginning of an episode `age` [B] steps ago."""
    depth = stack.shape[1]
    (young,) = np.nonzero(age < depth - 1)
    if len(young):
        source = np.maximum(np.arange(depth), depth - 1 - age[young, None])  # [young, S]
        stack[young] = stack[young[:, None], source]


def _native_spec(config: EnvironmentConfig) -> Any:
    """EnvPool's own spec, after checking the name and the options."""
    name, options = config.name, config.options
    names = envpool.list_all_envs()
    if name not in names:
        raise ValueError(
            f"environment.name={name!r} is not one of EnvPool's {len(names)} environments.{nearest(name, names)} List "
            'them with: python -c "import envpool; print(*envpool.list_all_envs())". For one of another library set '
            "environment.library=gymnasium or dm_env."
        )
    usual = envpool.make_spec(name)
    defaults = usual.config._asdict()
    for option in options:
        if option in _RESERVED:
            instead = _RESERVED[option]
            raise ValueError(
                f"environment.options can't hold {option!r}: "
                + (f"set {instead} instead." if instead else "the adapter sets it. Leave it out.")
            )
    check_options(options, [field for field in defaults if field not in _RESERVED], name)
    for option, value in options.items():
        wanted = type(defaults[option])
        if not isinstance(value, wanted) and not (wanted is float and type(value) is int):
            raise ValueError(
                f"environment.options has {option}={value!r}, which must be of type {wanted.__name__}, as "
                f"{name}'s default {defaults[option]!r} is."
            )
    if "max_episode_steps" in options and (name in _WITHOUT_LIMIT or _family(name) == "procgen"):
        raise ValueError(
            f"environment.options has max_episode_steps={options['max_episode_steps']!r}, but {name} ends by itself "
            "and ignores a limit. Leave it out."
        )
    return envpool.make_spec(name, **options) if options else usual  # Atari reads the game for it: 0.1 s


def _family(name: str) -> str:
    """The EnvPool package of an environment, e.g. "atari"."""
    import_path: str = envpool.registration.registry.specs[name][0]
    return import_path.split(".")[1]


def _convert(native: Any) -> EnvironmentSpec:
    """An EnvPool spec as ours."""
    observation = {
        key.removeprefix("obs").removeprefix(":").replace(".", "/"): arrays.array_spec(
            _shape(value), value.dtype, *_bounds(value), f"Observation {key!r}"
        )
        for key, value in native.state_array_spec.items()
        if key == "obs" or key.startswith("obs:")
    }
    settings = native.config._asdict()
    if settings.get("gray_scale", False) and settings["stack_num"] > 1:  # Atari; colours would share the stack's axis
        observation[""] = dataclasses.replace(observation[""], stacked=True)
    return EnvironmentSpec(
        observation=arrays.observation_spec(observation),
        action=_action_converter(native).spec,
    )


def _action_converter(native: Any) -> arrays.ActionConverter:
    actions = [key for key in native.action_array_spec if key not in ("env_id", "players.env_id")]
    if len(actions) != 1:
        raise ValueError(f"This environment takes {len(actions)} actions a step ({actions}); only one is supported.")
    action = native.action_array_spec[actions[0]]
    low, high = _bounds(action)
    if np.issubdtype(action.dtype, np.integer):
        return arrays.DiscreteConverter(int(high) + 1, dtype=action.dtype)
    return arrays.ContinuousConverter(_shape(action), action.dtype, low, high)


def _shape(native: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in native.shape if size != -1)  # -1 counts the players, always one here


def _bounds(native: Any) -> tuple[Array, Array]:
    """Minimum and maximum, as far as EnvPool knows them."""
    low, high = np.asarray(native.minimum, np.float64), np.asarray(native.maximum, np.float64)
    unknown = (low == np.finfo(np.float64).tiny) | (low < -_UNBOUNDED)  # the first is said for "none" by mistake
    return np.where(unknown, -math.inf, low), np.where(high > _UNBOUNDED, math.inf, high)
