"""Makes the environments that a config names. A library is imported only when it is used."""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from configs.experiment import EnvironmentConfig
from launch.environments.naming import nearest
from launch.environments.protocol import Environments
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
    adapter = _adapter(config)
    made: Environments = adapter.make(config, num, _seeds(seed, num), config.threads if threads is None else threads)
    return made


def environment_spec(config: EnvironmentConfig) -> EnvironmentSpec:
    """What one environment shows and takes. Leaves no environment, thread or device behind. Errors as in
    make_environments.
    """
    spec: EnvironmentSpec = _adapter(config).spec_of(config)
    return spec


def _adapter(config: EnvironmentConfig) -> ModuleType:
    """The module that wraps a library: it has make() and spec_of()."""
    # Imported here: EnvPool's import takes a second and brings JAX along, which users of Gymnasium shouldn't pay for.
    if config.library not in LIBRARIES:
        raise ValueError(
            f"environment.library={config.library!r} is not one of {', '.join(LIBRARIES)}."
            f"{nearest(str(config.library), LIBRARIES)} Set environment.library={LIBRARIES[0]}."
        )
    try:
        return importlib.import_module(f"launch.environments.{config.library}")
    except ImportError as error:
        others = " or ".join(library for library in LIBRARIES if library != config.library)
        raise ImportError(
            f"environment.library={config.library!r} can't be imported: {error}. Install it "
            f"(pip install --no-deps -r requirements.lock), or set environment.library to {others}."
        ) from error


def _seeds(seed: int | Sequence[int], num: int) -> Any:
    """`num` numbers in 0..2**31-1, as [num] int64."""
    words = [seed] if isinstance(seed, int) else list(seed)
    if not words or any(word < 0 for word in words):
        raise ValueError(f"seed={seed!r} must be one or more integers >= 0. Set run.seed=0 or more.")
    return np.random.SeedSequence(words).generate_state(num).astype(np.int64) >> 1
