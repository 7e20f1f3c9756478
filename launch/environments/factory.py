"""Makes the environments that a config names. A library is imported only when it is used."""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from configs.experiment import EnvironmentConfig
from launch.environments.naming import nearest
from launch.environments.protocol import AsynchronousEnvironments, Environments
from launch.environments.threaded import ThreadedEnvironments
from replay.spec import EnvironmentSpec

LIBRARIES: tuple[str, ...] = ("envpool", "gymnasium", "dm_env")


def make_environments(
    config: EnvironmentConfig, num: int, seed: int | Sequence[int], threads: int | None = None
) -> Environments:
    """Makes `num` environments, in the process that will step them.

    Args:
        config: which environment; its `per_actor` is not looked at.
        num: how many.
        seed: an integer >= 0 or a few of them, e.g. (run seed, actor index). The same ones give the same episodes for
            the same actions. All environments differ from each other, and from those made with any other seed: the
            numbers are hashed, so neighbouring seeds don't share environments.
        threads: threads of EnvPool, config.threads if None. The other libraries step in the caller's thread.

    Raises:
        ValueError: an unknown name or option, or spaces that an agent can't be given; names the nearest that work.
        ImportError: the library, or the module that the name points to, can't be imported.
    """
    if num < 1:
        raise ValueError(f"num={num} environments: there must be at least one. Set environment.per_actor=1 or more.")
    adapter = import_library(config.library)
    made: Environments = adapter.make(config, num, _seeds(seed, num), config.threads if threads is None else threads)
    return made


def make_asynchronous(
    config: EnvironmentConfig, num: int, batch_size: int, seed: int | Sequence[int], threads: int
) -> AsynchronousEnvironments:
    """Makes `num` environments that give the `batch_size` which are ready first, stepped by so many threads.

    The arguments and errors are make_environments'; environment i shows the same for the same actions as there.
    """
    adapter, seeds = import_library(config.library), _seeds(seed, num)
    if config.library == "envpool":
        pool: AsynchronousEnvironments = adapter.make_asynchronous(config, num, batch_size, seeds, threads)
        return pool
    singles = [adapter.make(config, 1, seeds[index : index + 1], 1) for index in range(num)]
    return ThreadedEnvironments(singles, batch_size, threads)


def environment_spec(config: EnvironmentConfig) -> EnvironmentSpec:
    """What one environment shows and takes. Leaves no environment, thread or device behind. Errors as in
    make_environments.
    """
    spec: EnvironmentSpec = import_library(config.library).spec_of(config)
    return spec


def import_library(library: str) -> ModuleType:
    """The module that wraps a library, with make() and spec_of(). Starts nothing: a process may call it before it forks
    those that make environments.

    Raises:
        ValueError: there is no such library.
        ImportError: it can't be imported.
    """
    if library not in LIBRARIES:
        raise ValueError(
            f"environment.library={library!r} is not one of {', '.join(LIBRARIES)}.{nearest(str(library), LIBRARIES)} "
            f"Set environment.library={LIBRARIES[0]}."
        )
    if library == "envpool":
        _silence_gym()
    try:  # only when used: EnvPool's import takes a second and brings JAX along
        return importlib.import_module(f"launch.environments.{library}")
    except ImportError as error:
        others = " or ".join(other for other in LIBRARIES if other != library)
        raise ImportError(
            f"environment.library={library!r} can't be imported: {error}. Install it "
            f"(pip install --no-deps -r requirements.lock), or set environment.library to {others}."
        ) from error


def _silence_gym() -> None:
    """Keeps the banner of the Gym package, which EnvPool imports, off stderr ("Gym has been unmaintained ...")."""
    try:
        from gym_notices import notices
    except ImportError:  # then there is no banner either
        return
    notices.notices.clear()


def _seeds(seed: int | Sequence[int], num: int) -> Any:
    """`num` numbers in 0..2**31-1, as [num] int64."""
    words = [seed] if isinstance(seed, int) else list(seed)
    if not words or any(word < 0 for word in words):
        raise ValueError(f"seed={seed!r} must be one or more integers >= 0. Set run.seed=0 or more.")
    return np.random.SeedSequence(words).generate_state(num).astype(np.int64) >> 1
