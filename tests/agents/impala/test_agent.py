"""What IMPALA's agent does around its loss."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from agents.agent import Fleet
from agents.impala.agent import make_agent
from agents.impala.config import ImpalaConfig
from agents.signatures import example_timestep
from replay.spec import ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec, ReplaySpec

ENVIRONMENT = EnvironmentSpec(observation=ArraySpec(shape=(2,), dtype="float32"), action=DiscreteAction(count=3))
CONFIG = ImpalaConfig(hidden_sizes=(4,))


def test_actors_sample_the_policy_whose_logits_they_store():
    agent = make_agent(CONFIG, ENVIRONMENT)
    learner = agent.init_learner(jax.random.PRNGKey(0))
    count = 4096
    state = agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, count))
    output, after = jax.jit(agent.act)(learner.params, state, example_timestep(ENVIRONMENT, count))
    shares = np.bincount(output.action, minlength=3) / count
    np.testing.assert_allclose(shares, jax.nn.softmax(output.extras["logits"][0]), atol=0.03)
    assert not np.array_equal(state.key, after.key)


def test_evaluators_take_the_likeliest_action():
    agent = make_agent(CONFIG, ENVIRONMENT)
    learner = agent.init_learner(jax.random.PRNGKey(0))
    timestep = example_timestep(ENVIRONMENT, 16)
    timestep = timestep._replace(observation=np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32))
    output, _ = agent.act_greedily(learner.params, agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, 16)), timestep)
    np.testing.assert_array_equal(output.action, np.argmax(output.extras["logits"], axis=1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replay": ReplaySpec(queue=False)}, "agent_config.replay.queue=True"),
        ({"replay": ReplaySpec(queue=True, n_step=2)}, "agent_config.replay.n_step=1"),
        ({"replay": ReplaySpec(queue=True, burn_in=2)}, "agent_config.replay.burn_in=0"),
        ({"replay": ReplaySpec(queue=True, trace=20, period=10)}, "agent_config.replay.period=20"),
        ({"clip_rho": 0.5}, "agent_config.clip_rho=0.5"),
    ],
)
def test_numbers_that_cannot_work_are_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make_agent(dataclasses.replace(CONFIG, **changes), ENVIRONMENT)


def test_continuous_actions_are_refused():
    action = ContinuousAction(size=1, minimum=(-1.0,), maximum=(1.0,))
    with pytest.raises(ValueError, match="agent=impala chooses among discrete actions"):
        make_agent(CONFIG, dataclasses.replace(ENVIRONMENT, action=action))
