"""What the EnvPool adapter costs beside the bare pool: both step 16 CartPoles in turns, in one run."""

import statistics
import time
from typing import NamedTuple

import numpy as np

from configs.experiment import EnvironmentConfig
from launch.environments.factory import make_environments

ENVIRONMENTS = 16
STEPS = 100  # in one turn: short, so that both sides meet the same weather
TURNS = 300  # of each


class Figures(NamedTuple):
    """Medians over the turns."""

    bare: float  # seconds a step of the pool's own step()
    adapter: float  # seconds a step of ours
    ratio: float  # adapter / bare, of turns that follow each other


def measure(steps: int = STEPS, turns: int = TURNS) -> Figures:
    """Steps both sides alternately, so that whatever else the machine does falls on both."""
    environments = make_environments(EnvironmentConfig(), ENVIRONMENTS, seed=0, threads=1)
    import envpool  # after the adapter, which silences the banner of its import

    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=ENVIRONMENTS, num_threads=1, seed=0)
    environments.reset()
    pool.reset()
    actions = np.random.default_rng(0).integers(0, 2, (steps, ENVIRONMENTS), np.int32)
    bare: list[float] = []
    adapter: list[float] = []
    for turn in range(turns + 1):
        for times, step in ((bare, pool.step), (adapter, environments.step)):
            start = time.perf_counter()
            for action in actions:
                step(action)
            if turn:  # the first warms up
                times.append((time.perf_counter() - start) / steps)
        environments.episodes()
    environments.close()
    ratios = [ours / theirs for theirs, ours in zip(bare, adapter, strict=True)]
    return Figures(statistics.median(bare), statistics.median(adapter), statistics.median(ratios))


def main() -> None:
    figures = measure()
    print(f"bare EnvPool {figures.bare * 1e6:.1f} us a step of {ENVIRONMENTS}, adapter {figures.adapter * 1e6:.1f} us")
    print(f"ratio {figures.ratio:.3f}")


if __name__ == "__main__":
    main()
