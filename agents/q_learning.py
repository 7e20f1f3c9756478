"""What the learners of Q-functions share: their state, and how a gradient moves it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.agent import Params
from replay.steps import Array


class QLearnerState(NamedTuple):
    """What the learner carries."""

    params: Params
    target_params: Params
    optimizer: optax.OptState
    step: Array  # int32, updates done


def init_q_learner(params: Params, optimizer: optax.GradientTransformation) -> QLearnerState:
    """The state before the first update; the target network is a copy."""
    target_params = jax.tree.map(jnp.copy, params)  # a donated state must not hold a buffer twice
    return QLearnerState(params, target_params, optimizer.init(params), jnp.zeros((), jnp.int32))


def follow_gradient(
    state: QLearnerState, gradient: Params, optimizer: optax.GradientTransformation, target_period: int
) -> QLearnerState:
    """One step of the optimiser; the target network becomes a copy again every `target_period` steps."""
    change, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    params, step = optax.apply_updates(state.params, change), state.step + 1
    target_params = optax.periodic_update(params, state.target_params, step, target_period)
    return QLearnerState(params, target_params, optimizer_state, step)
