"""What every library must do alike: one endless stream of steps."""

from typing import Any

import jax
import numpy as np
import pytest

from agents.agent import TimeStep
from configs.experiment import EnvironmentConfig
from launch.environments.factory import environment_spec, make_environments
from launch.environments.protocol import Environments
from replay.spec import ArraySpec, ContinuousAction, DiscreteAction

CORRIDORS = "tests.launch.environments.corridor"
SPREAD = {"start_below": 3}
CONFIGS = {
    "cartpole": EnvironmentConfig(name="CartPole-v1"),
    "catch": EnvironmentConfig(name="Catch-v0"),
    "breakout": EnvironmentConfig(name="Breakout-v5", options={"episodic_life": True, "max_episode_steps": 60}),
    "reacher": EnvironmentConfig(name="ReacherEasy-v1", options={"max_episode_steps": 20}),
    "pendulum": EnvironmentConfig(name="Pendulum-v1", options={"max_episode_steps": 20}),
    "gymnasium cartpole": EnvironmentConfig(name="CartPole-v1", library="gymnasium"),
    "gymnasium corridor": EnvironmentConfig(name=f"{CORRIDORS}:GymnasiumCorridor", library="gymnasium", options=SPREAD),
    "gymnasium nested": EnvironmentConfig(name=f"{CORRIDORS}:NestedCorridor", library="gymnasium"),
    "dm_env corridor": EnvironmentConfig(name=f"{CORRIDORS}:DmCorridor", library="dm_env", options=SPREAD),
    "dm_env nested": EnvironmentConfig(
        name=f"{CORRIDORS}:DmCorridor", library="dm_env", options={"nested": True, **SPREAD}
    ),
}
RANDOM = [name for name in CONFIGS if name != "gymnasium nested"]  # those with something to seed
NUM, STEPS = 3, 200


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> EnvironmentConfig:
    return CONFIGS[request.param]


def draw_actions(environments: Environments, steps: int = STEPS, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    match environments.spec.action:
        case DiscreteAction(count=count):
            return random.integers(0, count, (steps, environments.num), np.int32)
        case ContinuousAction(size=size):
            return random.uniform(-1, 1, (steps, environments.num, size)).astype(np.float32)


def stack(timesteps: list[TimeStep]) -> Any:
    """TimeSteps as one with a time axis first; a plain pytree to jax."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *timesteps)


def play(config: EnvironmentConfig, seed: int = 0, change: Any = None) -> tuple[Any, Environments]:
    """A stream of STEPS + 1 steps; change(t, actions [B], ended [B]) may replace the actions."""
    environments = make_environments(config, NUM, seed, threads=2)
    timesteps = [environments.reset()]
    for t, action in enumerate(draw_actions(environments)):
        if change is not None:
            action = change(t, action, timesteps[-1].terminated | timesteps[-1].truncated)
        timesteps.append(environments.step(action))
    environments.close()
    return stack(timesteps), environments


def equal(left: Any, right: Any) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, left, right)))


def test_shapes_and_dtypes_are_those_of_the_spec(config: EnvironmentConfig) -> None:
    spec = environment_spec(config)
    stream, environments = play(config)
    assert environments.spec == spec
    assert environments.num == NUM
    assert stream.reward.dtype == np.float32
    assert {stream.first.dtype, stream.terminated.dtype, stream.truncated.dtype} == {np.dtype(bool)}
    assert stream.first.shape == stream.reward.shape == (STEPS + 1, NUM)
    shown = {"": stream.observation} if isinstance(spec.observation, ArraySpec) else stream.observation
    wanted = {"": spec.observation} if isinstance(spec.observation, ArraySpec) else spec.observation
    assert shown.keys() == wanted.keys()
    for name, array in wanted.items():
        assert shown[name].shape == (STEPS + 1, NUM, *array.shape)
        assert shown[name].dtype == np.dtype(array.dtype)
        assert shown[name].min() >= array.minimum
        assert shown[name].max() <= array.maximum


def test_an_end_is_followed_by_a_first_step(config: EnvironmentConfig) -> None:
    stream, _ = play(config)
    ended = stream.terminated | stream.truncated
    assert stream.first[0].all()
    np.testing.assert_array_equal(stream.first[1:], ended[:-1])
    assert ended[:-1].any(axis=0).all()  # control: every environment did end
    assert not (stream.terminated & stream.truncated).any()
    assert not stream.reward[stream.first].any()
    assert not ended[stream.first].any()


def test_the_step_after_an_end_ignores_its_action(config: EnvironmentConfig) -> None:
    def change_ignored(t: int, action: Any, ended: Any) -> Any:
        return np.where(ended.reshape(-1, *[1] * (action.ndim - 1)), 0, action).astype(action.dtype)

    def change_all(t: int, action: Any, ended: Any) -> Any:
        return np.zeros_like(action)

    stream, _ = play(config)
    assert equal(stream, play(config, change=change_ignored)[0])
    assert not equal(stream, play(config, change=change_all)[0])  # control: actions do matter


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "breakout"])  # a life is not a game
def test_episodes_report_what_the_stream_showed(name: str) -> None:
    stream, environments = play(CONFIGS[name])
    ended = stream.terminated | stream.truncated
    expected = []
    total, length = np.zeros(NUM), np.zeros(NUM, int)
    for t in range(STEPS + 1):
        for b in range(NUM):
            total[b] += stream.reward[t, b]
            length[b] += not stream.first[t, b]
            if ended[t, b]:
                expected.append((total[b], length[b], b))
                total[b], length[b] = 0, 0
    episodes = environments.episodes()
    np.testing.assert_allclose(episodes, expected, rtol=1e-6)
    assert len(expected) > NUM
    assert environments.episodes() == []


@pytest.mark.parametrize("name", RANDOM)
def test_the_seed_decides_the_stream(name: str) -> None:
    stream, _ = play(CONFIGS[name], seed=7)
    assert equal(stream, play(CONFIGS[name], seed=7)[0])
    for seed in (6, 8):  # neighbours share no environment either: EnvPool seeds them with seed + i
        other, _ = play(CONFIGS[name], seed=seed)
        assert not equal(stream, other)


def test_neighbouring_seeds_share_no_environment() -> None:
    observations = [
        make_environments(CONFIGS["cartpole"], 8, seed, threads=1).reset().observation for seed in (0, 1, 2)
    ]
    together = np.concatenate(observations)
    assert len(np.unique(together, axis=0)) == 24
    pairs = [make_environments(CONFIGS["cartpole"], 8, seed, 1).reset().observation for seed in ((0, 1), (1, 0))]
    assert not np.array_equal(*pairs)


def test_what_was_given_out_is_not_written_into(config: EnvironmentConfig) -> None:
    environments = make_environments(config, NUM, 0, threads=1)
    kept = [environments.reset()]
    copies = [jax.tree.map(np.copy, kept[0])]
    for action in draw_actions(environments, 30):
        kept.append(environments.step(action))
        copies.append(jax.tree.map(np.copy, kept[-1]))
    assert equal(stack(kept), stack(copies))
    assert not equal(kept[0], kept[-1])  # control


def test_reset_forgets_the_episodes_under_way(config: EnvironmentConfig) -> None:
    environments = make_environments(config, NUM, 0, threads=1)
    actions = draw_actions(environments, 2)
    environments.reset()
    environments.step(actions[0])
    timestep = environments.reset()
    assert timestep.first.all()
    timestep = environments.step(actions[1])
    assert not timestep.first.any()
    lengths = [episode.length for episode in environments.episodes()]
    assert all(length <= 1 for length in lengths)
    environments.close()
    environments.close()
