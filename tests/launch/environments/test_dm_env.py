import logging
from typing import Any

import numpy as np
import pytest

from configs.experiment import EnvironmentConfig
from launch.environments import dm_env as adapter
from launch.environments.factory import environment_spec, make_environments
from replay.spec import ArraySpec, DiscreteAction
from tests.launch.environments.corridor import REWARD, DmCorridor

CORRIDORS = "tests.launch.environments.corridor"


def named(name: str, **options: Any) -> EnvironmentConfig:
    return EnvironmentConfig(name=f"{CORRIDORS}:{name}", library="dm_env", options=options)


def test_two_episodes_by_hand() -> None:
    """Corridor of 3 cells, limit 5: environment 0 walks to its end, environment 1 stays until it is cut."""
    environments = make_environments(named("DmCorridor"), 2, 0)
    assert environments.spec.action == DiscreteAction(count=2)
    timesteps = [environments.reset()] + [environments.step(np.array([1, 0], np.int32)) for _ in range(6)]
    assert [t.observation[0].tolist() for t in timesteps] == [[0, 0], [1, 1], [2, 2], [3, 3], [0, 0], [1, 1], [2, 2]]
    assert [t.observation[1].tolist() for t in timesteps] == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [0, 0]]
    np.testing.assert_array_equal(np.nonzero([t.first for t in timesteps]), [[0, 0, 4, 6], [0, 1, 0, 1]])
    np.testing.assert_array_equal(np.nonzero([t.terminated for t in timesteps]), [[3], [0]])
    np.testing.assert_array_equal(np.nonzero([t.truncated for t in timesteps]), [[5], [1]])
    rewards = np.array([t.reward for t in timesteps])
    np.testing.assert_array_equal(rewards[:, 0], np.array([0, 1, 1, 1, 0, 1, 1]) * REWARD)
    np.testing.assert_array_equal(rewards[:, 1], np.array([0, 1, 1, 1, 1, 1, 0]) * REWARD)
    assert environments.episodes() == [(3 * REWARD, 3, 0), (5 * REWARD, 5, 1)]


def test_nested_observations_get_flat_names() -> None:
    environments = make_environments(named("DmCorridor", nested=True), 2, 0)
    assert environments.spec.observation == {
        "where/cell": ArraySpec(shape=(2,), dtype="float32", minimum=0, maximum=100),
        "steps": ArraySpec(shape=(), dtype="int32"),
    }
    environments.reset()
    observation = environments.step(np.array([0, 1], np.int32)).observation
    np.testing.assert_array_equal(observation["where/cell"], [[0, 1], [1, 1]])
    np.testing.assert_array_equal(observation["steps"], [1, 1])


def test_an_observation_of_another_shape_than_the_spec_is_refused() -> None:
    class Lying(DmCorridor):
        def _see(self) -> Any:
            return np.zeros(1)

    environments = adapter.DmEnvironments([Lying(0)])
    with pytest.raises(ValueError, match=r"shape \(1,\), but the environment's spec says \(2,\)"):
        environments.reset()


def test_close_closes_each_environment_once() -> None:
    inner = [DmCorridor(0), DmCorridor(1)]
    environments = adapter.DmEnvironments(inner)
    environments.close()
    environments.close()
    assert [environment.closed for environment in inner] == [1, 1]


def test_a_maker_without_seed_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        environment_spec(named("DmCorridor"))
        assert not caplog.records
        environment_spec(named("make_unseeded"))
    assert "takes no argument `seed`" in caplog.text


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("DmCorridoor", {}, ValueError, r"no callable 'DmCorridoor'.*Did you mean 'DmCorridor'"),
        ("DmCorridor", {"lenght": 2}, ValueError, r"'lenght'.*Did you mean 'length'"),
        ("DmCorridor", {"seed": 2}, ValueError, r"Set run.seed instead"),
        ("GymnasiumCorridor", {}, ValueError, r"made a GymnasiumCorridor.*environment.library=gymnasium"),
        ("make_nothing", {}, ValueError, r"made a NoneType, not a dm_env.Environment"),
    ],
)
def test_errors_say_what_to_type(name: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        environment_spec(named(name, **options))
    with pytest.raises(error, match=message):
        make_environments(named(name, **options), 1, 0)


def test_a_name_without_a_callable_is_refused() -> None:
    with pytest.raises(ValueError, match=r"environment.name='catch'.*package.module:callable"):
        environment_spec(EnvironmentConfig(name="catch", library="dm_env"))
