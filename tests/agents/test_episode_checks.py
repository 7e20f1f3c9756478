"""What the checks of ends, priorities and purity let through, and what they don't. The sound agents hold to all of them
in test_contract.py.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from agents.agent import Agent
from agents.apex_dqn.agent import make_agent as make_apex
from agents.apex_dqn.config import ApexConfig
from agents.contract import EXAMPLES, Case
from agents.episode_checks import (
    alone,
    arguments_decide,
    beyond_an_end,
    episodes_are_apart,
    priorities_are_usable,
    two_orders,
)
from agents.impala.agent import make_agent as make_impala
from agents.impala.config import ImpalaConfig
from replay.spec import ReplaySpec
from replay.steps import Steps
from tests.agents.rows import rows

ENVIRONMENT = EXAMPLES["vector"]
SHORT = ReplaySpec(queue=True, trace=6, period=6, n_step=1)


def impala() -> Agent:
    return make_impala(ImpalaConfig(hidden_sizes=(8,), replay=SHORT), ENVIRONMENT)


def apex() -> Agent:
    return make_apex(ApexConfig(hidden_sizes=(8,), head_size=8), ENVIRONMENT)


def with_steps(agent: Agent, change: Callable[[Steps], Steps]) -> Agent:
    def update(state: Any, batch: Any) -> Any:
        return agent.update(state, batch._replace(steps=change(batch.steps)))

    return dataclasses.replace(agent, update=update)


def later_rewards(agent: Agent) -> Agent:
    """Adds the reward of two rows later, over an end as well; what isn't valid is masked before."""

    def change(steps: Steps) -> Steps:
        reward = jnp.where(steps.valid, steps.reward, 0.0)
        return steps._replace(reward=reward.at[:-2].add(0.5 * reward[2:]))

    return with_steps(agent, change)


def test_rewards_of_the_next_episode_are_found():
    for make in (impala, apex):
        episodes_are_apart(Case(make(), ENVIRONMENT))  # control
    with pytest.raises(ValueError, match="which of two episodes"):
        episodes_are_apart(Case(later_rewards(impala()), ENVIRONMENT))
    with pytest.raises(ValueError, match="after its end"):
        episodes_are_apart(Case(later_rewards(apex()), ENVIRONMENT))


def test_rows_beyond_an_end_are_all_that_differs():
    base, changed = beyond_an_end(rows([1, 2, 3, 4, 5]), ReplaySpec(trace=2, n_step=3, period=2))
    assert base.terminated[:, 0].tolist() == [False, True, False, False, False]
    assert base.valid[:, 0].tolist() == [True, True, False, True, True]
    assert changed.reward[:, 0].tolist() == [1, 2, 3, 5, 6]
    assert (changed.observation - base.observation)[:, 0, 0].tolist() == [0, 0, 0, 1, 1]


def test_two_episodes_change_places_as_wholes():
    replay = ReplaySpec(trace=6, period=6, n_step=1)
    one, other = two_orders(rows([1, 2, 3, 4, 5, 6, 7]), replay)
    assert one.valid[:, 0].tolist() == [True, True, False, True, True, False, False]
    assert one.terminated[:, 0].tolist() == [False, True, False, False, True, False, False]
    assert one.first[:, 0].tolist() == [True, False, False, True, False, False, True]
    assert other.reward[:, 0].tolist() == [4, 5, 6, 1, 2, 3, 7]
    for field in ("valid", "terminated", "first"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    left, right = alone(one, other, replay)
    assert left.reward[left.valid].tolist() == right.reward[right.valid].tolist() == [1, 2]


def test_a_burn_in_is_padding():
    one, _ = two_orders(rows([0] * 9), ReplaySpec(burn_in=2, trace=6, period=6, n_step=1))
    assert np.flatnonzero(one.valid[:, 0]).tolist() == [2, 3, 5, 6]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_priorities_that_a_table_cannot_take_are_found(value: float):
    agent = apex()
    priorities_are_usable(Case(agent, ENVIRONMENT))  # control

    def update(state: Any, batch: Any) -> Any:
        after, said = agent.update(state, batch)
        return after, said._replace(priorities=jnp.full(batch.info.items.shape, value))

    with pytest.raises(ValueError, match=r"update\(\)\.priorities"):
        priorities_are_usable(Case(dataclasses.replace(agent, update=update), ENVIRONMENT))

    def initial(steps: Steps) -> Any:
        return np.full(steps.reward.shape[1], value, np.float32)

    with pytest.raises(ValueError, match=r"initial_priorities\(\) has"):
        priorities_are_usable(Case(dataclasses.replace(agent, initial_priorities=initial), ENVIRONMENT))


def test_priorities_that_count_calls_are_found():
    calls: list[None] = []

    def initial(steps: Steps) -> Any:
        calls.append(None)
        return np.full(steps.reward.shape[1], len(calls), np.float32)

    with pytest.raises(ValueError, match="two answers to the same rows"):
        priorities_are_usable(Case(dataclasses.replace(apex(), initial_priorities=initial), ENVIRONMENT))


def counting(agent: Agent) -> Agent:
    """Its act() counts in Python how often it is traced."""
    calls: list[None] = []

    def act(params: Any, state: Any, timestep: Any) -> Any:
        calls.append(None)
        output, state = agent.act(params, state, timestep)
        return output._replace(extras={"logits": output.extras["logits"] + len(calls)}), state

    return dataclasses.replace(agent, act=act)


def globally_random(agent: Agent) -> Agent:
    """Its update() draws from numpy."""
    generator = np.random.default_rng(0)  # of the module, as it were

    def update(state: Any, batch: Any) -> Any:
        noise = generator.normal(size=batch.steps.reward.shape).astype(np.float32)
        return agent.update(state, batch._replace(steps=batch.steps._replace(reward=batch.steps.reward + noise)))

    return dataclasses.replace(agent, update=update)


def wide(agent: Agent) -> Agent:
    """Its update() asks for 64 bits, which it doesn't get."""
    return with_steps(agent, lambda steps: steps._replace(reward=jnp.asarray(steps.reward, jnp.float64)))


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (counting, r"act\(\) is another function"),
        (globally_random, r"update\(\) is another function"),
        (wide, r"update\(\) asks for 64 bits"),
    ],
)
def test_what_is_not_decided_by_arguments_is_found(break_it: Callable[[Agent], Agent], said: str):
    with pytest.raises(ValueError, match=said):
        arguments_decide(Case(break_it(impala()), ENVIRONMENT))


def test_sound_agents_are_the_same_function_each_time():
    arguments_decide(Case(impala(), ENVIRONMENT))
    assert jnp.zeros(1).dtype == jnp.float32  # else 64 bits would be no fault
