"""An actor's priorities: by hand, and against the learner's errors with the same network."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.agent import Agent, Fleet, TimeStep
from agents.apex_dqn.agent import make_agent
from agents.apex_dqn.config import ApexConfig
from agents.apex_dqn.priorities import actor_priorities
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.steps import Batch, SampleInfo, Steps
from tests.agents.rows import rows

ENVIRONMENT = EnvironmentSpec(observation=ArraySpec(shape=(2,), dtype="float32"), action=DiscreteAction(count=3))
CONFIG = ApexConfig(
    replay=ReplaySpec(trace=1, n_step=3, period=1, sampler="prioritized"), hidden_sizes=(8,), head_size=8, discount=0.5
)
SEQUENCES = 64


def column(values: list[float]) -> Any:
    """[T, 1] float32."""
    return np.asarray(values, np.float32)[:, None]


def test_four_rows_by_hand():
    said = {"q_taken": column([1, 9, 9, 9]), "q_max": column([9, 9, 6, 8])}
    # Rewards 1 + 2/2 + 4/4 = 3, the value 8 of row 3 counts 1/8: 3 + 1 - 1 = 3.
    np.testing.assert_allclose(actor_priorities(rows([1, 2, 4, 9], extras=said), CONFIG), [3.001])
    # Ended after row 1: 1 + 2/2 - 1 = 1, or with the value 6 of the episode's last observation 1 + 6/4.
    np.testing.assert_allclose(actor_priorities(rows([1, 2, 4, 9], terminated=[1], extras=said), CONFIG), [1.001])
    np.testing.assert_allclose(actor_priorities(rows([1, 2, 4, 9], truncated=[1], extras=said), CONFIG), [2.501])
    # The error's sign doesn't matter: -9 + 0 - 1.
    lost = actor_priorities(rows([-9, 0, 0, 0], terminated=[0], extras=said), CONFIG)
    np.testing.assert_allclose(lost, [10.001])
    assert lost.dtype == np.float32


def test_the_largest_of_the_valid_rows_counts():
    replay = ReplaySpec(trace=3, n_step=1, period=3, sampler="prioritized")
    config = dataclasses.replace(CONFIG, replay=replay, reward_clip=2.0)
    said = {"q_taken": column([0, 100, 1, 0]), "q_max": column([0, 0, 0, 4])}
    # Row 0 terminates: clipped to 2 - 0. Row 1 is invalid, whatever it says. Row 2: 0 + 4/2 - 1 = 1.
    np.testing.assert_allclose(actor_priorities(rows([3, 0, 0, 0], terminated=[0], extras=said), config), [2.001])


@functools.cache
def acted(trace: int, clip: float) -> tuple[Agent, Any, Steps]:
    """An agent, a learner's state, and rows [L, SEQUENCES] that its actor wrote, with ends of both kinds."""
    replay = ReplaySpec(trace=trace, n_step=3, period=trace, sampler="prioritized")
    agent = make_agent(dataclasses.replace(CONFIG, replay=replay, reward_clip=clip), ENVIRONMENT)
    learner = agent.init_learner(jax.random.PRNGKey(0))
    state, act = agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, SEQUENCES)), jax.jit(agent.act)
    rng = np.random.default_rng(0)
    over, written = np.zeros(SEQUENCES, bool), []
    for index in range(replay.sequence_length):
        observation = rng.normal(size=(SEQUENCES, 2)).astype(np.float32)
        timestep = TimeStep(observation, np.zeros(SEQUENCES, np.float32), ~over, over, ~over)  # act looks at none of it
        output, state = act(agent.actor_params(learner), state, timestep)
        valid, chance = ~over, rng.random(SEQUENCES)
        terminated, truncated = valid & (chance < 0.2), valid & (chance > 0.8)
        written.append(
            Steps(
                observation=observation,
                action=np.asarray(output.action),
                reward=3 * rng.normal(size=SEQUENCES).astype(np.float32),
                first=~valid if index else valid,
                terminated=terminated,
                truncated=truncated,
                valid=valid,
                version=np.zeros(SEQUENCES, np.int32),
                extras={name: np.asarray(value) for name, value in output.extras.items()},
            )
        )
        over = terminated | truncated
    return agent, learner, jax.tree.map(lambda *leaves: np.stack(leaves), *written)


def learner_priorities(agent: Agent, learner: Any, steps: Steps) -> Any:
    info = SampleInfo(jnp.full(SEQUENCES, 0.01), jnp.ones(SEQUENCES), jnp.full(SEQUENCES, 100, jnp.int32))
    return jax.jit(agent.update)(learner, Batch(steps, (), info))[1].priorities


@pytest.mark.parametrize(("trace", "clip"), [(1, 0.0), (1, 1.0), (4, 0.0)])
def test_they_are_the_learners_while_the_networks_are_equal(trace: int, clip: float):
    agent, learner, steps = acted(trace, clip)
    assert steps.terminated[0].any(), "no end to look at"
    assert steps.truncated[0].any(), "no end to look at"
    assert agent.initial_priorities is not None
    given = agent.initial_priorities(steps._replace(observation=None))
    np.testing.assert_allclose(given, learner_priorities(agent, learner, steps), rtol=1e-4, atol=1e-5)


def test_they_differ_from_the_learners_once_the_networks_do():
    agent, learner, steps = acted(1, 0.0)
    assert agent.initial_priorities is not None
    moved = learner._replace(target_params=jax.tree.map(lambda leaf: leaf + 0.1, learner.target_params))
    difference = agent.initial_priorities(steps) - learner_priorities(agent, moved, steps)
    assert np.abs(difference).max() > 1e-2
