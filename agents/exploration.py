"""Epsilon-greedy actors, each environment with an epsilon of its own."""

import jax
import jax.numpy as jnp

from agents.agent import Fleet, Key
from replay.steps import Array


def epsilon_ladder(fleet: Fleet, base: float, exponent: float) -> Array:
    """epsilon_i = base^(1 + exponent * i / (N - 1)) for this actor's environments i of all N (Horgan et al. 2018,
    section 4.1). [B] float32.
    """
    index = fleet.first + jnp.arange(fleet.environments)
    last = max(fleet.total - 1, 1)
    return jnp.asarray(base, jnp.float32) ** (1.0 + exponent * index.astype(jnp.float32) / last)


def epsilon_greedy(key: Key, values: Array, epsilon: Array) -> Array:
    """The best action of values [B, A], or with probability epsilon [B] any. [B] int32."""
    explore_key, action_key = jax.random.split(key)
    best = jnp.argmax(values, axis=1)
    other = jax.random.randint(action_key, best.shape, 0, values.shape[1])
    return jnp.where(jax.random.uniform(explore_key, best.shape) < epsilon, other, best).astype(jnp.int32)
