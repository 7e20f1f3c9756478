import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from configs.experiment import EnvironmentConfig
from launch.environments.factory import environment_spec, make_environments
from replay.spec import ArraySpec, ContinuousAction, DiscreteAction

FAMILIES = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Pong-v5",
    "LunarLander-v2",
    "CheetahRun-v1",
    "NChain-v0",
    "Taxi-v3",
    "D1Basic-v1",
)
LIVES = {"episodic_life": True, "reward_clip": True}


def make(name: str, num: int = 1, seed: int = 0, **options: Any) -> Any:
    return make_environments(EnvironmentConfig(name=name, options=options), num, seed, threads=1)


# Makes, steps and destroys pools on one CPU, where the thread that makes a pool's buffers runs last of all: it is
# behind when the end comes. CLOSE is how a pool is let go.
STARVED = """
import os
import numpy as np
from configs.experiment import EnvironmentConfig
from launch.environments.factory import make_environments

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for _ in range(100):
    before = {int(thread) for thread in os.listdir("/proc/self/task")}
    environments = make_environments(EnvironmentConfig(name="Catch-v0"), 2, 0, 2)
    maker = min({int(thread) for thread in os.listdir("/proc/self/task")} - before)
    os.sched_setscheduler(maker, os.SCHED_IDLE, os.sched_param(0))
    environments.reset()
    for _ in range(20):
        environments.step(np.zeros(2, np.int32))
    CLOSE
print("done")
"""


def run_starved(close: str, seconds: float) -> str:
    """What such a process printed; raises TimeoutExpired if it hangs."""
    command = [sys.executable, "-c", STARVED.replace("CLOSE", close)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds).stdout


def idle(environments: Any) -> Any:
    array = environments.spec.action_array
    return np.zeros((environments.num, *array.shape), array.dtype)


def balance(observation: Any) -> Any:
    """Keeps CartPole up beyond 500 steps."""
    return ((observation @ np.array([0.02, 0.1, 1.0, 0.5])) > 0).astype(np.int32)


def play_atari(environments: Any, steps: int) -> Any:
    """Random play: lists of TimeSteps and of the actions that led to them."""
    random = np.random.default_rng(0)
    timesteps, actions = [environments.reset()], []
    for _ in range(steps):
        actions.append(random.integers(0, environments.spec.action.count, environments.num, np.int32))
        timesteps.append(environments.step(actions[-1]))
    return timesteps, actions


@pytest.mark.parametrize(
    ("name", "observation", "action"),
    [
        ("Pong-v5", ArraySpec(shape=(4, 84, 84), dtype="uint8", minimum=0, maximum=255, stacked=True), 6),
        ("CartPole-v1", ArraySpec(shape=(4,), dtype="float32"), 2),
        ("Catch-v0", ArraySpec(shape=(10, 5), dtype="float32", minimum=0, maximum=1), 3),
        ("FrozenLake-v1", ArraySpec(shape=(), dtype="int32", minimum=0, maximum=15), 4),
        ("CoinrunEasy-v0", ArraySpec(shape=(3, 64, 64), dtype="uint8", minimum=0, maximum=255), 15),
    ],
)
def test_spec_with_discrete_actions(name: str, observation: ArraySpec, action: int) -> None:
    spec = environment_spec(EnvironmentConfig(name=name))
    assert spec.observation == observation
    assert spec.action == DiscreteAction(count=action)


def test_spec_with_continuous_actions() -> None:
    spec = environment_spec(EnvironmentConfig(name="Pendulum-v1"))
    assert spec.action == ContinuousAction(size=1, minimum=(-2.0,), maximum=(2.0,))
    spec = environment_spec(EnvironmentConfig(name="CarRacing-v2"))
    assert spec.action == ContinuousAction(size=3, minimum=(-1.0, 0.0, 0.0), maximum=(1.0, 1.0, 1.0))


def test_only_stacks_of_single_frames_are_called_stacked() -> None:
    def stacked(**options: Any) -> Any:
        return environment_spec(EnvironmentConfig(name="Pong-v5", options=options)).observation

    assert stacked(stack_num=2).stacked
    assert not stacked(stack_num=1).stacked
    assert not stacked(gray_scale=False).stacked  # [12, 84, 84]: the colours are on the same axis
    assert stacked(gray_scale=False).shape == (12, 84, 84)


def test_the_spec_leaves_no_thread_and_close_ends_those_of_a_pool() -> None:
    process = psutil.Process()
    before = process.num_threads()
    environment_spec(EnvironmentConfig(name="Pong-v5"))
    assert process.num_threads() == before
    environments = make_environments(EnvironmentConfig(name="CartPole-v1"), 4, 0, threads=3)
    environments.reset()
    assert process.num_threads() >= before + 3  # control
    environments.close()
    assert process.num_threads() == before


def test_cartpole_at_its_limit_of_500_steps_is_truncated() -> None:
    environments = make("CartPole-v1")
    timestep = environments.reset()
    for _ in range(500):
        assert not timestep.truncated[0]
        assert not timestep.terminated[0]
        timestep = environments.step(balance(timestep.observation))
    assert timestep.truncated[0]
    assert not timestep.terminated[0]
    assert timestep.reward[0] == 1.0
    assert environments.episodes() == [(500.0, 500, 0)]


def test_a_falling_cartpole_is_terminated() -> None:
    environments = make("CartPole-v1")
    environments.reset()
    timesteps = [environments.step(np.zeros(1, np.int32)) for _ in range(12)]
    assert any(timestep.terminated[0] for timestep in timesteps)
    assert not any(timestep.truncated[0] for timestep in timesteps)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_time_limit_truncates_in_every_family(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # VizDoom writes a file where it is started
    environments = make(name, max_episode_steps=7)
    environments.reset()
    timesteps = [environments.step(idle(environments)) for _ in range(16)]
    assert [t for t, timestep in enumerate(timesteps) if timestep.truncated[0]] == [6, 14]
    assert not any(timestep.terminated[0] for timestep in timesteps)
    assert [episode.length for episode in environments.episodes()] == [7, 7]


@pytest.mark.parametrize("name", ["Catch-v0", "Blackjack-v1", "CliffWalking-v0", "CoinrunEasy-v0"])
def test_a_limit_that_would_be_ignored_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"max_episode_steps=5.*Leave it out"):
        make(name, max_episode_steps=5)


def test_catch_terminates() -> None:
    environments = make("Catch-v0")
    environments.reset()
    timesteps = [environments.step(idle(environments)) for _ in range(10)]
    assert [timestep.terminated[0] for timestep in timesteps] == [False] * 8 + [True, False]
    assert not any(timestep.truncated[0] for timestep in timesteps)
    assert environments.episodes()[0].length == 9


def test_a_game_over_on_the_step_of_the_limit_is_terminated() -> None:
    free = make("Breakout-v5")
    _, actions = play_atari(free, 400)
    length = free.episodes()[0].length
    limited = make("Breakout-v5", max_episode_steps=length)
    limited.reset()
    for action in actions[:length]:
        timestep = limited.step(action)
    assert timestep.terminated[0]
    assert not timestep.truncated[0]
    # Control: EnvPool itself, played the same, says it was the limit.
    control = make("Breakout-v5", max_episode_steps=length)
    pool = control._pool
    pool.reset()
    for action in actions[:length]:
        _, _, terminated, truncated, _ = pool.step(action)
    assert truncated[0]
    assert not terminated[0]


def test_episodes_are_raw_rewards_of_whole_games() -> None:
    """With clipped rewards and lives as episodes, against what EnvPool's infos say, added up by hand."""
    environments = make("SpaceInvaders-v5", **LIVES)
    timesteps, actions = play_atari(environments, 1500)
    control = make("SpaceInvaders-v5", **LIVES)
    pool = control._pool
    pool.reset()
    expected, total, lives = [], 0.0, 0
    for action in actions:
        _, _, terminated, _, info = pool.step(action)
        total += float(info["reward"][0])
        lives += int(terminated[0])
        if info["terminated"][0]:
            expected.append((total, info["elapsed_step"][0], 0))
            total = 0.0
    episodes = environments.episodes()
    assert episodes == expected
    assert len(episodes) >= 2
    assert lives > len(episodes)  # control: lives did end in between
    clipped = sum(timestep.reward[0] for timestep in timesteps)
    assert max(timestep.reward[0] for timestep in timesteps) == 1.0
    assert clipped < sum(episode.return_ for episode in episodes)  # control: rewards were clipped
    assert sum(timestep.terminated[0] for timestep in timesteps) == lives


@pytest.mark.parametrize("options", [{}, LIVES])
def test_a_stack_holds_no_frame_from_before_its_episode(options: dict[str, Any]) -> None:
    environments = make("Breakout-v5", num=2, **options)
    timesteps, _ = play_atari(environments, 400)
    beginnings = 0
    for b in range(2):
        frames: list[Any] = []  # the newest frame of each step of the episode
        for timestep in timesteps:
            stack = timestep.observation[b]
            if timestep.first[b]:
                frames = []
                beginnings += 1
            frames.append(stack[-1])
            wanted = ([frames[0]] * 3 + frames)[-4:]
            np.testing.assert_array_equal(stack, wanted)
    assert beginnings > 4


def test_envpool_itself_leaves_frames_of_a_lost_life_in_the_stack() -> None:
    """The control of the test above: without the repair it would fail."""
    environments = make("Breakout-v5", episodic_life=True)
    pool = environments._pool
    pool.reset()
    random = np.random.default_rng(0)
    ended = False
    mixed = []
    for _ in range(200):
        observation, _, terminated, _, _ = pool.step(random.integers(0, 4, 1, np.int32))
        if ended:
            mixed.append(not (observation[0] == observation[0, -1]).all())
        ended = terminated[0]
    assert any(mixed)


@pytest.mark.parametrize("close", ["environments.close()", "environments = None"])
def test_a_pool_ends_even_right_after_a_step(close: str) -> None:
    assert run_starved(close, 60) == "done\n"


def test_envpool_itself_hangs_there() -> None:
    """The control of the test above."""
    with pytest.raises(subprocess.TimeoutExpired):
        run_starved("environments._end.detach(); environments = None", 10)


def test_actions_are_clipped_to_their_bounds() -> None:
    def speeds(torque: float) -> Any:
        environments = make("Pendulum-v1", num=2)
        environments.reset()
        return environments.step(np.full((2, 1), torque, np.float32)).observation[:, 2]

    def clipped(action: list[list[float]]) -> Any:
        return make("CarRacing-v2")._action(np.array(action, np.float32))

    np.testing.assert_array_equal(speeds(50.0), speeds(2.0))
    assert not np.array_equal(speeds(1.0), speeds(2.0))  # control
    np.testing.assert_array_equal(clipped([[-3, -3, -3], [3, 3, 3]]), [[-1, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(clipped([[0.5, 0.5, 0.25]]), [[0.5, 0.5, 0.25]])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Pongg-v5", {}, r"environment.name='Pongg-v5'.*Did you mean 'Pong-v5'.*list_all_envs"),
        ("Pong-v5", {"frameskip": 2}, r"'frameskip'.*Did you mean 'frame_skip'"),
        ("Pong-v5", {"frame_skip": "2"}, r"frame_skip='2'.*type int"),
        ("Pong-v5", {"num_envs": 2}, r"'num_envs': set environment.per_actor"),
        ("Pong-v5", {"num_threads": 2}, r"set environment.threads"),
        ("Pong-v5", {"seed": 2}, r"set run.seed"),
    ],
)
def test_errors_say_what_to_type(name: str, options: dict[str, Any], message: str) -> None:
    config = EnvironmentConfig(name=name, options=options)
    for function in (lambda: environment_spec(config), lambda: make_environments(config, 1, 0, 1)):
        with pytest.raises(ValueError, match=message):
            function()


def test_importing_it_prints_nothing() -> None:
    def run(code: str) -> str:
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return result.stdout + result.stderr

    assert run("from launch.environments.factory import import_library; import_library('envpool')") == ""
    assert "unmaintained" in run("import envpool")  # control: there is a banner
