import dataclasses

import pytest

from agents.registry import config_type
from configs import serialization
from configs.experiment import Experiment
from configs.fields import list_fields
from configs.overrides import apply_overrides, switch_agent
from configs.presets import PRESETS, describe_presets, preset
from replay.plan import plan_shard


@pytest.fixture(params=sorted(PRESETS))
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return preset(request.param)


def plan(experiment: Experiment) -> object:
    learner = experiment.learner
    replay = experiment.agent_config.replay
    return plan_shard(replay, experiment.topology.shards, learner.batch_size, learner.samples_in_flight)


def test_the_promised_ones_are_there():
    pixels = {f"{agent}_pong" for agent in ("apex", "impala")}
    small = {f"{agent}_{task}" for agent in ("apex", "impala", "ppo", "r2d2") for task in ("cartpole", "catch")}
    minatar = {f"{agent}_minatar_{game}" for agent in ("apex", "impala") for game in ("asterix", "breakout")}
    others = {"apex_memory", "r2d2_memory", "ppo_pendulum", "sebulba_cartpole", "sebulba_pong"}
    assert set(PRESETS) == pixels | small | minatar | others


def test_each_is_there_under_its_own_name(experiment: Experiment):
    assert PRESETS[experiment.name]() == experiment


def test_agent_takes_that_config(experiment: Experiment):
    assert config_type(experiment.agent) is type(experiment.agent_config)


def test_replay_can_be_divided_over_the_shards(experiment: Experiment):
    plan(experiment)


def test_a_replay_that_can_not_work_would_be_noticed():
    with pytest.raises(ValueError, match="error_buffer"):
        plan(apply_overrides(preset("apex_cartpole"), ["agent_config.replay.error_buffer=1"]))


def test_round_trip_through_json(experiment: Experiment):
    assert serialization.from_json(serialization.to_json(experiment)) == experiment


def test_digests_differ():
    assert len({serialization.digest_of(preset(name)) for name in PRESETS}) == len(PRESETS)


def test_every_field_can_be_set_to_the_value_it_has(experiment: Experiment):
    def text(value: object) -> str:
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    overrides = [f"{field.path}={text(field.value)}" for field in list_fields(experiment)]
    assert len(overrides) > 40
    assert apply_overrides(experiment, overrides) == experiment


def test_every_agent_can_be_put_on_every_environment(experiment: Experiment):
    for agent in ("impala", "apex_dqn"):
        switched = switch_agent(experiment, agent)
        assert type(switched.agent_config) is config_type(agent)
        assert dataclasses.replace(switched, agent=experiment.agent, agent_config=experiment.agent_config) == experiment


def test_unknown_name_gets_the_nearest_one():
    with pytest.raises(ValueError, match="Did you mean apex_cartpole"):
        preset("apex_cartpol")
    with pytest.raises(ValueError, match="There are: apex_cartpole"):
        preset("zzz")


def test_each_is_described_in_a_line():
    for name, line in describe_presets().items():
        assert 20 < len(line) < 100, name
