"""What Ape-X's agent does around its loss: the target network, the exponent of the weights, and what it refuses."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from agents.agent import Fleet
from agents.apex_dqn.agent import make_agent
from agents.apex_dqn.config import ApexConfig
from agents.signatures import example_timestep, zero_batch
from replay.spec import ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec, ReplaySpec

ENVIRONMENT = EnvironmentSpec(observation=ArraySpec(shape=(2,), dtype="float32"), action=DiscreteAction(count=3))
CONFIG = ApexConfig(hidden_sizes=(4,), head_size=4, target_period=3, importance_steps=4, learning_rate=0.01)


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_the_target_network_is_copied_every_so_many_updates_and_beta_grows():
    agent = make_agent(CONFIG, ENVIRONMENT)
    state = agent.init_learner(jax.random.PRNGKey(0))
    batch = zero_batch(agent, ENVIRONMENT, 4)
    batch = batch._replace(steps=batch.steps._replace(reward=np.ones_like(batch.steps.reward)))
    update = jax.jit(agent.update)
    first, exponents = state.target_params, []
    for step in range(1, 7):
        before, (state, said) = state, update(state, batch)
        exponents.append(float(said.metrics["importance_exponent"]))
        assert not same(state.params, before.params)  # control: it learns
        assert same(state.target_params, state.params if step % 3 == 0 else before.target_params)
    assert not same(first, state.target_params)
    # 0.4 at first, 1 from the fourth update on: 0.4 + 0.6 * step / 4.
    np.testing.assert_allclose(exponents, [0.4, 0.55, 0.7, 0.85, 1.0, 1.0], rtol=1e-6)


def test_weights_make_rare_samples_count_more():
    agent = make_agent(dataclasses.replace(CONFIG, importance_exponent=1.0), ENVIRONMENT)
    batch = zero_batch(agent, ENVIRONMENT, 2)
    update = jax.jit(agent.update)
    # Only the second sequence errs; half its probability, all its weight against half: the loss doubles.
    reward = np.zeros_like(batch.steps.reward)
    reward[:, 1] = 100.0
    batch = batch._replace(steps=batch.steps._replace(reward=reward, terminated=~batch.steps.terminated))

    def loss(probability: list[float]) -> float:
        info = batch.info._replace(probability=np.asarray(probability, np.float32))
        _, said = update(agent.init_learner(jax.random.PRNGKey(0)), batch._replace(info=info))
        return float(said.metrics["total"])

    np.testing.assert_allclose(loss([0.1, 0.05]) / loss([0.05, 0.1]), 2.0, rtol=1e-3)


def test_actors_explore_by_their_place_in_the_fleet_and_evaluators_do_not():
    agent = make_agent(CONFIG, ENVIRONMENT)
    params = agent.init_learner(jax.random.PRNGKey(0)).params
    count = 512
    timestep = example_timestep(ENVIRONMENT, count)
    state = agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, count))
    greedy, after = agent.act_greedily(params, state, timestep)
    explored, _ = agent.act(params, state, timestep)
    assert same(state, after)
    assert len(set(np.asarray(greedy.action).tolist())) == 1  # one observation, one best action
    other = np.asarray(explored.action) != np.asarray(greedy.action)
    # The first half explores with 0.4 .. 0.4^4.5, the second with less than 0.4^4.5 = 0.016.
    assert other[: count // 2].sum() > 10 > other[count // 2 :].sum()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replay": ReplaySpec(queue=True)}, "agent_config.replay.queue=False"),
        ({"replay": ReplaySpec(burn_in=2)}, "agent_config.replay.burn_in=0"),
        ({"target_period": 0}, "agent_config.target_period=0"),
        ({"importance_steps": 0}, "importance_steps=0"),
    ],
)
def test_numbers_that_cannot_work_are_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make_agent(dataclasses.replace(CONFIG, **changes), ENVIRONMENT)


def test_continuous_actions_are_refused():
    action = ContinuousAction(size=1, minimum=(-1.0,), maximum=(1.0,))
    with pytest.raises(ValueError, match="agent=apex_dqn chooses among discrete actions"):
        make_agent(CONFIG, dataclasses.replace(ENVIRONMENT, action=action))
