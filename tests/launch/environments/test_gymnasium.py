import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from configs.experiment import EnvironmentConfig
from configs.presets import preset
from launch.environments import arrays
from launch.environments.factory import environment_spec, make_environments
from replay.spec import ArraySpec, ContinuousAction, DiscreteAction
from tests.launch.environments.corridor import REWARD

CORRIDORS = "tests.launch.environments.corridor"


def named(name: str, **options: Any) -> EnvironmentConfig:
    return EnvironmentConfig(name=name, library="gymnasium", options=options)


def make(name: str, num: int = 1, **options: Any) -> Any:
    return make_environments(named(name, **options), num, 0)


def test_two_episodes_by_hand() -> None:
    """Corridor of 3 cells, limit 5: environment 0 walks to its end, environment 1 stays until it is cut."""
    environments = make(f"{CORRIDORS}:GymnasiumCorridor", 2)
    timesteps = [environments.reset()] + [environments.step(np.array([1, 0], np.int32)) for _ in range(6)]
    walked = [timestep.observation[0].tolist() for timestep in timesteps]
    stayed = [timestep.observation[1].tolist() for timestep in timesteps]
    assert walked == [[0, 0], [1, 1], [2, 2], [3, 3], [0, 0], [1, 1], [2, 2]]
    assert stayed == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [0, 0]]
    flags = [(*timestep.first, *timestep.terminated, *timestep.truncated) for timestep in timesteps]
    no = False
    assert flags == [
        (True, True, no, no, no, no),
        (no,) * 6,
        (no,) * 6,
        (no, no, True, no, no, no),
        (True, no, no, no, no, no),
        (no, no, no, no, no, True),
        (no, True, no, no, no, no),
    ]
    rewards = np.array([timestep.reward for timestep in timesteps])
    np.testing.assert_array_equal(rewards[:, 0], np.array([0, 1, 1, 1, 0, 1, 1]) * REWARD)
    np.testing.assert_array_equal(rewards[:, 1], np.array([0, 1, 1, 1, 1, 1, 0]) * REWARD)
    assert environments.episodes() == [(3 * REWARD, 3, 0), (5 * REWARD, 5, 1)]


def test_an_end_on_the_step_of_the_limit_is_terminated() -> None:
    environments = make(f"{CORRIDORS}:GymnasiumCorridor", limit=3)
    environments.reset()
    timesteps = [environments.step(np.ones(1, np.int32)) for _ in range(3)]
    assert timesteps[-1].terminated[0]
    assert not timesteps[-1].truncated[0]


def test_nested_observations_get_flat_names() -> None:
    environments = make(f"{CORRIDORS}:NestedCorridor", 2)
    assert environments.spec.observation == {
        "steps": ArraySpec(shape=(), dtype="int32", minimum=0, maximum=99),
        "eye/picture": ArraySpec(shape=(4, 2), dtype="uint8", minimum=0, maximum=255),
        "eye/cell": ArraySpec(shape=(4,), dtype="int8", minimum=0, maximum=1),
    }
    environments.reset()
    observation = environments.step(np.array([0, 1], np.int32)).observation
    np.testing.assert_array_equal(observation["steps"], [1, 1])
    np.testing.assert_array_equal(observation["eye/cell"], [[1, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(observation["eye/picture"][1], np.ones((4, 2)))


def test_continuous_actions_are_clipped_and_shaped() -> None:
    environments = make(f"{CORRIDORS}:Dial", 2)
    assert environments.spec.action == ContinuousAction(size=2, minimum=(-1.0, -0.1), maximum=(1.0, 0.1))
    environments.reset()
    # float32(0.1) > 0.1: a clip before the cast to the environment's float64 would leave its box.
    observation = environments.step(np.array([[5, 0.1], [-5, 0.05]], np.float32)).observation
    np.testing.assert_allclose(observation, [[[1, 0.1]], [[-1, 0.05]]], rtol=1e-6)


def test_a_registered_environment_takes_options_of_make_and_of_its_own() -> None:
    assert environment_spec(named("CartPole-v1")).action == DiscreteAction(count=2)
    environments = make("CartPole-v1", max_episode_steps=4, sutton_barto_reward=True)
    environments.reset()
    timesteps = [environments.step(np.array([t % 2], np.int32)) for t in range(4)]
    assert [timestep.truncated[0] for timestep in timesteps] == [False, False, False, True]
    assert environments.episodes() == [(0.0, 4, 0)]  # Sutton and Barto pay nothing while it stands


def test_a_module_that_registers_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registers.py").write_text(
        "import gymnasium\n"
        f"gymnasium.register('Walk/Corridor-v0', '{CORRIDORS}:GymnasiumCorridor', max_episode_steps=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    environments = make("registers:Walk/Corridor-v0")
    environments.reset()
    timesteps = [environments.step(np.zeros(1, np.int32)) for _ in range(2)]
    assert timesteps[-1].truncated[0]
    del gymnasium.registry["Walk/Corridor-v0"], sys.modules["registers"]


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("CartPol-v1", {}, ValueError, r"environment.name='CartPol-v1'.*Did you mean 'CartPole-v1'.*pprint_registry"),
        ("CartPole", {}, ValueError, r"Did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"sutton_barto": True}, ValueError, r"'sutton_barto'.*Did you mean 'sutton_barto_reward'"),
        (f"{CORRIDORS}:GymnasiumCorridor", {"lenght": 3}, ValueError, r"Did you mean 'length'"),
        (f"{CORRIDORS}:GymCorridor", {}, ValueError, r"no callable 'GymCorridor'.*Did you mean .*'GymnasiumCorridor'"),
        (f"{CORRIDORS}:Tuples", {}, ValueError, r"Tuple space.*FlattenObservation"),
        (f"{CORRIDORS}:make_unseeded", {}, ValueError, r"made a DmCorridor.*environment.library=dm_env"),
        ("tests.nowhere:Corridor", {}, ImportError, r"environment.name=.*no module 'tests.nowhere'.*PYTHONPATH"),
        ("LunarLander-v3", {}, ImportError, r"environment.name='LunarLander-v3'.*Box2D.*environment.library=envpool"),
    ],
)
def test_errors_say_what_to_type(name: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    for function in (lambda: environment_spec(named(name, **options)), lambda: make(name, **options)):
        with pytest.raises(error, match=message):
            function()


def test_a_module_that_lacks_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"lacking was found, but it imports 'surely_not_installed'"):
        make("lacking:MyEnv")


def test_the_first_card_is_shown_once_and_asked_for_to_the_end() -> None:
    """The task of r2d2_memory: who remembers is always right, who names what it sees is at chance."""
    environments = make_environments(preset("r2d2_memory").environment, 2, 0)
    assert environments.spec.observation == ArraySpec(shape=(), dtype="int32", minimum=0, maximum=3)
    timestep = environments.reset()
    returns = []
    for _ in range(40):  # episodes in environment 0, which remembers; environment 1 names what it sees
        card = timestep.observation[0]
        for _ in range(51):
            timestep = environments.step(np.array([card, timestep.observation[1]], np.int32))
        assert timestep.terminated.all()
        returns.append([episode.return_ for episode in environments.episodes()])
        timestep = environments.step(np.zeros(2, np.int32))  # the next deck
        assert timestep.first.all()
    remembered, seen = np.array(returns).T
    np.testing.assert_allclose(remembered, 1.0, atol=1e-5)
    assert seen.mean() == pytest.approx(-0.5, abs=0.05)  # 25 % right


@pytest.mark.parametrize(("game", "channels"), [("breakout", 4), ("asterix", 4)])
def test_minatar_shows_its_board(game: str, channels: int) -> None:
    environments = make_environments(preset(f"apex_minatar_{game}").environment, 2, 0)
    board = ArraySpec(shape=(10, 10, channels), dtype="bool", minimum=0, maximum=1)
    assert (environments.spec.observation, environments.spec.action) == (board, DiscreteAction(count=6))

    def play() -> list[Any]:
        again = make_environments(preset(f"apex_minatar_{game}").environment, 2, 0)
        timesteps = [again.reset()] + [again.step(np.array([3, 1], np.int32)) for _ in range(200)]
        return [timestep.observation for timestep in timesteps]

    np.testing.assert_array_equal(play(), play())  # sticky actions too are drawn from the seed


def test_names_that_hold_a_slash_themselves() -> None:
    observation = {"walker/speed": 1, "walker": {"height": 2, "leg/angle": 3}}
    names = arrays.flatten(observation)
    assert names == {"walker/speed": 1, "walker/height": 2, "walker/leg/angle": 3}
    assert {name: arrays.leaf(observation, name) for name in names} == names
