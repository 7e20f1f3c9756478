"""Agents with one fault each, to see that it is found."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.agent import Agent, Update
from agents.apex_dqn.agent import make_agent as make_apex
from agents.apex_dqn.config import ApexConfig
from agents.contract import EXAMPLES
from agents.impala.agent import make_agent as make_impala
from agents.impala.config import ImpalaConfig

ENVIRONMENT = EXAMPLES["vector"]


def impala() -> Agent:
    """A sound one."""
    return make_impala(ImpalaConfig(hidden_sizes=(16,)), ENVIRONMENT)


def apex() -> Agent:
    """A sound one with a replay to draw from again and again."""
    return make_apex(ApexConfig(hidden_sizes=(16,), head_size=16), ENVIRONMENT)


def with_output(agent: Agent, change: Callable[[Any], Any]) -> Agent:
    """Its act() says something else."""

    def act(*arguments: Any) -> Any:
        output, state = agent.act(*arguments)
        return change(output), state

    return dataclasses.replace(agent, act=act)


def with_steps(agent: Agent, change: Callable[[Any], Any]) -> Agent:
    """Its update() sees other rows."""
    return dataclasses.replace(
        agent, update=lambda state, batch: agent.update(state, batch._replace(steps=change(batch.steps)))
    )


def with_update(agent: Agent, change: Callable[[Any, Update], Any]) -> Agent:
    """Its update() says something else."""
    return dataclasses.replace(agent, update=lambda state, batch: change(*agent.update(state, batch)))


def deaths_for_limits() -> Agent:
    """Learns from a truncation as from a termination."""
    return with_steps(impala(), lambda steps: steps._replace(terminated=steps.terminated | steps.truncated))


def all_rows_count() -> Agent:
    """Takes rows that aren't valid for valid ones."""
    return with_steps(impala(), lambda steps: steps._replace(valid=jnp.ones_like(steps.valid)))


def uphill() -> Agent:
    """Steps in the wrong direction."""
    agent = apex()

    def update(state: Any, batch: Any) -> Any:
        after, said = agent.update(state, batch)
        return after._replace(params=jax.tree.map(lambda old, new: 2 * old - new, state.params, after.params)), said

    return dataclasses.replace(agent, update=update)


def same_key_again() -> Agent:
    """Gives the key back that it has used."""
    agent = impala()
    return dataclasses.replace(
        agent, act=lambda params, state, timestep: (agent.act(params, state, timestep)[0], state)
    )


def no_exploration() -> Agent:
    """Acts greedily."""
    agent = apex()
    return dataclasses.replace(agent, act=agent.act_greedily)


def unseeded() -> Agent:
    """Has the same weights for every key."""
    agent = impala()
    return dataclasses.replace(agent, init_learner=lambda key: agent.init_learner(jnp.zeros_like(key)))


def weakly_typed() -> Agent:
    """Counts in Python's numbers, so that the second update is compiled anew."""
    agent = with_update(apex(), lambda state, said: (state._replace(step=state.step.astype(jnp.int32)), said))
    return dataclasses.replace(agent, init_learner=lambda key: agent.init_learner(key)._replace(step=jnp.asarray(0)))


def wide() -> Agent:
    """Holds 64 bits."""
    agent = impala()
    return dataclasses.replace(agent, init_actor=lambda key, fleet: {"key": key, "count": np.zeros(3, np.float64)})


def shared_buffer() -> Agent:
    """Has target weights that are the weights."""
    agent = apex()

    def init_learner(key: Any) -> Any:
        state = agent.init_learner(key)
        return state._replace(target_params=state.params)

    return dataclasses.replace(agent, init_learner=init_learner)


def forgetful() -> Agent:
    """Keeps something outside of its state."""
    agent = impala()
    calls: list[None] = []

    def update(state: Any, batch: Any) -> Any:
        def count() -> Any:
            calls.append(None)
            return np.float32(len(calls))

        after, said = agent.update(state, batch)
        number = jax.pure_callback(count, jax.ShapeDtypeStruct((), np.float32))
        return after, said._replace(metrics={**said.metrics, "calls": number})

    return dataclasses.replace(agent, update=update)


FAULTS: dict[str, tuple[Callable[[], Agent], str]] = {
    "deaths_for_limits": (deaths_for_limits, "limits_are_no_deaths"),
    "all_rows_count": (all_rows_count, "invalid_rows_say_nothing"),
    "uphill": (uphill, "loss_falls"),
    "same_key_again": (same_key_again, "keys_decide"),
    "no_exploration": (no_exploration, "keys_decide"),
    "unseeded": (unseeded, "keys_decide"),
    "weakly_typed": (weakly_typed, "signatures_fit"),
    "wide": (wide, "states_are_arrays"),
    "shared_buffer": (shared_buffer, "states_are_arrays"),
    "forgetful": (forgetful, "checkpoints_hold_everything"),
}
