"""What R2D2's agent does around its loss: the target network, exploration, and what it refuses."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from agents.agent import Fleet
from agents.r2d2.agent import make_agent
from agents.signatures import example_timestep, zero_batch
from replay.spec import ContinuousAction, ReplaySpec
from tests.agents.r2d2.rollout import CONFIG, ENVIRONMENT, make


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_the_target_network_is_copied_every_so_many_updates():
    agent = make(dataclasses.replace(CONFIG, target_period=3, learning_rate=0.01))
    state = agent.init_learner(jax.random.PRNGKey(0))
    batch = zero_batch(agent, ENVIRONMENT, 4)
    batch = batch._replace(steps=batch.steps._replace(reward=np.ones_like(batch.steps.reward)))
    update = jax.jit(agent.update)
    for step in range(1, 7):
        before, (state, _) = state, update(state, batch)
        assert not same(state.params, before.params)  # control: it learns
        assert same(state.target_params, state.params if step % 3 == 0 else before.target_params)


def test_weights_make_rare_samples_count_more():
    agent = make(dataclasses.replace(CONFIG, importance_exponent=1.0))
    batch = zero_batch(agent, ENVIRONMENT, 2)
    # Only the second sequence errs; half its probability, all its weight against half: the loss doubles.
    reward = np.zeros_like(batch.steps.reward)
    reward[:, 1] = 100.0
    batch = batch._replace(steps=batch.steps._replace(reward=reward, terminated=~batch.steps.terminated))
    update = jax.jit(agent.update)

    def loss(probability: list[float]) -> float:
        info = batch.info._replace(probability=np.asarray(probability, np.float32))
        _, said = update(agent.init_learner(jax.random.PRNGKey(0)), batch._replace(info=info))
        return float(said.metrics["total"])

    np.testing.assert_allclose(loss([0.1, 0.05]) / loss([0.05, 0.1]), 2.0, rtol=1e-2)


def test_actors_explore_and_evaluators_do_not_and_both_remember():
    agent = make()
    params = agent.init_learner(jax.random.PRNGKey(0)).params
    count = 512
    timestep = example_timestep(ENVIRONMENT, count)._replace(observation=np.ones((count, 2), np.float32))
    state = agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, count))
    greedy, after = agent.act_greedily(params, state, timestep)
    explored, later = agent.act(params, state, timestep)
    assert len(set(np.asarray(greedy.action).tolist())) == 1  # one observation, one best action
    other = np.asarray(explored.action) != np.asarray(greedy.action)
    # The first half explores with 0.4 .. 0.4^4.5, the second with less than 0.4^4.5 = 0.016.
    assert other[: count // 2].sum() > 10 > other[count // 2 :].sum()
    for then, output in ((after, greedy), (later, explored)):
        np.testing.assert_array_equal(then.stored.action, output.action)
        assert np.abs(then.stored.memory.hidden).max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replay": ReplaySpec(queue=True)}, "agent_config.replay.queue=False"),
        ({"target_period": 0}, "agent_config.target_period=0"),
    ],
)
def test_numbers_that_cannot_work_are_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make_agent(dataclasses.replace(CONFIG, **changes), ENVIRONMENT)


def test_continuous_actions_are_refused():
    action = ContinuousAction(size=1, minimum=(-1.0,), maximum=(1.0,))
    with pytest.raises(ValueError, match="agent=r2d2 chooses among discrete actions"):
        make_agent(CONFIG, dataclasses.replace(ENVIRONMENT, action=action))
