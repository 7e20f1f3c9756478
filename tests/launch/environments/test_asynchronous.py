"""Asynchronous environments show, each by itself, what synchronous ones do."""

from typing import Any

import numpy as np
import pytest

from agents.agent import TimeStep
from configs.experiment import EnvironmentConfig
from launch.environments.factory import make_asynchronous, make_environments
from launch.environments.protocol import AsynchronousEnvironments

NUM, STEPS = 4, 60


def action_of(environment: int, step: int) -> int:
    return (environment + step * step // 3) % 2


def play(environments: AsynchronousEnvironments) -> list[list[Any]]:
    """What each environment showed, for the same actions in whatever order they come."""
    shown: list[list[Any]] = [[] for _ in range(NUM)]
    environments.start()
    while min(map(len, shown)) < STEPS:
        timestep, ids = environments.receive()
        assert len(set(ids.tolist())) == len(ids) == 2
        for place, index in enumerate(ids.tolist()):
            shown[index].append([np.array(leaf[place]) for leaf in timestep])
        environments.send(np.asarray([action_of(i, len(shown[i])) for i in ids.tolist()], np.int32), ids)
    return shown


@pytest.mark.parametrize("library", ["envpool", "gymnasium"])
def test_each_stream_is_that_of_a_synchronous_run(library: Any) -> None:
    config = EnvironmentConfig(name="CartPole-v1", library=library, options={"max_episode_steps": 20})
    asynchronous = make_asynchronous(config, NUM, 2, (3, 1), threads=2)
    shown = play(asynchronous)
    episodes = asynchronous.episodes()
    asynchronous.close()
    synchronous = make_environments(config, NUM, (3, 1))
    timestep: TimeStep = synchronous.reset()
    for step in range(STEPS):
        for index in range(NUM):
            for want, got in zip(timestep, shown[index][step], strict=True):
                np.testing.assert_array_equal(got, want[index])
        timestep = synchronous.step(np.asarray([action_of(i, step + 1) for i in range(NUM)], np.int32))
    want = synchronous.episodes()
    for index in range(NUM):
        mine = [episode for episode in want if episode.environment == index]
        assert [episode for episode in episodes if episode.environment == index][: len(mine)] == mine
        assert mine


def test_what_an_environment_raises_reaches_the_caller() -> None:
    config = EnvironmentConfig(name="CartPole-v1", library="gymnasium")
    environments = make_asynchronous(config, 2, 2, 0, threads=2)
    environments.start()
    _, ids = environments.receive()
    environments.send(np.asarray([7, 7], np.int32), ids)
    with pytest.raises(AssertionError, match="7"):
        environments.receive()
    environments.close()
