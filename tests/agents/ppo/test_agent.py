"""What PPO's agent does around its loss."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.agent import Fleet
from agents.example_batches import random_batch
from agents.policies import distribution
from agents.ppo.agent import make_agent, shuffled_rows
from agents.ppo.config import PpoConfig
from agents.signatures import example_timestep
from replay.spec import ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec, ReplaySpec

OBSERVATION = ArraySpec(shape=(2,), dtype="float32")
DISCRETE = EnvironmentSpec(observation=OBSERVATION, action=DiscreteAction(count=3))
CONTINUOUS = EnvironmentSpec(
    observation=OBSERVATION, action=ContinuousAction(size=2, minimum=(-0.1, -0.1), maximum=(0.1, 0.1))
)
CONFIG = PpoConfig(
    replay=ReplaySpec(queue=True, trace=8, period=8), hidden_sizes=(4,), epochs=2, minibatches=4, learning_rate=0.01
)


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def acted(environment: EnvironmentSpec, count: int) -> tuple[Any, Any, Any]:
    agent = make_agent(CONFIG, environment)
    learner = agent.init_learner(jax.random.PRNGKey(0))
    state = agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, count))
    timestep = example_timestep(environment, count)
    output, _ = jax.jit(agent.act)(learner.params, state, timestep)
    greedy, _ = agent.act_greedily(learner.params, state, timestep)
    return output.action, output.extras["log_probability"], greedy.action


def test_actors_store_the_probability_of_what_they_did():
    action, log_probability, greedy = acted(DISCRETE, 4096)
    shares = np.bincount(action, minlength=3) / 4096
    for choice in range(3):
        np.testing.assert_allclose(np.exp(log_probability[action == choice]), shares[choice], atol=0.03)
    assert len(set(np.asarray(greedy).tolist())) == 1


def test_gaussian_actions_are_stored_with_their_density_and_not_clipped():
    action, log_probability, greedy = acted(CONTINUOUS, 4096)
    assert action.dtype == np.float32
    assert action.shape == (4096, 2)
    np.testing.assert_allclose(np.std(action, axis=0), 1.0, atol=0.05)  # the bounds are 0.1
    centred = np.asarray(action) - np.asarray(greedy)  # greedy: the mean
    by_hand = np.sum(-0.5 * centred**2 - 0.5 * np.log(2 * np.pi), axis=1)
    np.testing.assert_allclose(log_probability, by_hand, rtol=1e-4, atol=1e-4)


def test_a_gaussian_by_hand():
    policy = distribution({"mean": jnp.asarray([1.0]), "log_deviation": jnp.log(jnp.asarray([2.0]))})
    np.testing.assert_allclose(
        policy.log_prob(jnp.asarray([3.0])), -0.5 - np.log(2) - 0.5 * np.log(2 * np.pi), rtol=1e-6
    )
    np.testing.assert_allclose(policy.entropy(), np.log(2) + 0.5 * np.log(2 * np.pi * np.e), rtol=1e-6)
    np.testing.assert_allclose(policy.mode(), [1.0])


def test_each_epoch_takes_each_row_once_in_another_order():
    taken = np.asarray(shuffled_rows(jax.random.PRNGKey(0), CONFIG, 5))
    assert taken.shape == (8, 2, 5)
    for epoch in np.split(taken, 2):
        np.testing.assert_array_equal(np.sort(epoch.reshape(8, 5), axis=0), np.arange(8)[:, None].repeat(5, 1))
    assert not np.array_equal(taken[:4], taken[4:])
    assert not np.array_equal(taken[..., 0], taken[..., 1])  # every sequence is shuffled for itself


@pytest.mark.parametrize("environment", [DISCRETE, CONTINUOUS])
def test_an_update_shuffles_with_its_own_key_and_makes_good_actions_likelier(environment: EnvironmentSpec):
    agent = make_agent(dataclasses.replace(CONFIG, entropy_cost=0.0), environment)
    learner = agent.init_learner(jax.random.PRNGKey(0))
    batch = random_batch(agent, environment, learner.params, batch_size=32, seed=0, ends=False)
    # Each action's reward is its first number, and nothing follows from it.
    action = np.asarray(batch.steps.action, np.float32)
    reward = action if action.ndim == 2 else action[..., 0]
    ended = np.ones_like(batch.steps.terminated)
    batch = batch._replace(steps=batch.steps._replace(reward=reward, terminated=ended))
    update = jax.jit(agent.update)
    after, said = update(learner, batch)
    assert not np.array_equal(after.key, learner.key)
    assert not same(update(learner._replace(key=jax.random.PRNGKey(9)), batch)[0].params, after.params)
    assert np.isfinite(said.metrics["total"])

    def preferred(state: Any) -> float:
        actor = agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, 2048))
        output, _ = agent.act(state.params, actor, example_timestep(environment, 2048))
        return float(np.mean(output.action if output.action.ndim == 1 else output.action[:, 0]))

    assert preferred(after) > preferred(learner) + 0.02


def test_one_torso_or_two():
    sizes = []
    for shared in (True, False):
        agent = make_agent(dataclasses.replace(CONFIG, shared_torso=shared), DISCRETE)
        params = agent.init_learner(jax.random.PRNGKey(0)).params
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(params)))
    heads = (4 + 1) * 3 + (4 + 1)
    assert sizes == [12 + heads, 24 + heads]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replay": ReplaySpec(queue=False)}, "agent_config.replay.queue=True"),
        ({"replay": ReplaySpec(queue=True, n_step=2)}, "agent_config.replay.n_step=1"),
        ({"replay": ReplaySpec(queue=True, burn_in=2)}, "agent_config.replay.burn_in=0"),
        ({"replay": ReplaySpec(queue=True, trace=20, period=10)}, "agent_config.replay.period=20"),
        ({"minibatches": 3}, "minibatches=3 doesn't divide agent_config.replay.trace=8"),
        ({"epochs": 0}, "agent_config.epochs=0"),
    ],
)
def test_numbers_that_cannot_work_are_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make_agent(dataclasses.replace(CONFIG, **changes), DISCRETE)
