"""Evaluations take the same number of whole episodes from every environment."""

import threading
from collections import Counter

import numpy as np

from configs.experiment import EnvironmentConfig
from launch.environments.factory import make_environments
from launch.evaluator import play


def constant_policy(action: int):
    def policy(params, state, timestep):
        return type("Output", (), {"action": np.full(len(timestep.first), action, np.int32)}), state

    return policy


def test_every_environment_gives_its_share_however_long_its_episodes_are():
    environments = make_environments(EnvironmentConfig(name="CartPole-v1"), num=3, seed=5)
    episodes = play(constant_policy(1), None, None, environments, 7, threading.Event())
    assert Counter(episode.environment for episode in episodes) == {0: 3, 1: 2, 2: 2}
    assert all(8 <= episode.return_ <= 12 for episode in episodes)  # a constant push topples the pole in about 9 steps
    assert [episode.length for episode in episodes] == [episode.return_ for episode in episodes]
    environments.close()


def test_a_second_evaluation_begins_with_whole_episodes():
    environments = make_environments(EnvironmentConfig(name="Catch-v0"), num=2, seed=5)
    play(constant_policy(1), None, None, environments, 2, threading.Event())
    for _ in range(4):  # an episode under way, which would come out short
        environments.step(np.ones(2, np.int32))
    episodes = play(constant_policy(1), None, None, environments, 2, threading.Event())
    assert [episode.length for episode in episodes] == [9, 9]
    environments.close()


def test_stopping_ends_it_with_what_was_finished():
    environments = make_environments(EnvironmentConfig(name="CartPole-v1"), num=1, seed=5)
    stop = threading.Event()
    stop.set()
    assert play(constant_policy(0), None, None, environments, 3, stop) == []
    environments.close()
