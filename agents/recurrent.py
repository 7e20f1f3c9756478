"""Recurrent cores over rows of several episodes, and what they see of the row before."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from replay.steps import Array


class Memory(NamedTuple):
    """An LSTM's state."""

    cell: Array  # [B, size] float32
    hidden: Array  # [B, size] float32


def empty_memory(environments: int, size: int) -> Memory:
    """What an episode begins with."""
    return Memory(jnp.zeros((environments, size)), jnp.zeros((environments, size)))


class LstmCore(nn.Module):
    """An LSTM that begins anew with each episode."""

    size: int

    @nn.compact
    def __call__(self, memory: Memory, inputs: Array, first: Array) -> tuple[Memory, Array]:
        """Memory [B, size], inputs [T, B, F] and where episodes begin [T, B] -> last memory, outputs [T, B, size]."""

        def step(cell: nn.Module, memory: Memory, row: tuple[Array, Array]) -> tuple[Memory, Array]:
            kept = jax.tree.map(lambda leaf: jnp.where(row[1][:, None], jnp.zeros_like(leaf), leaf), memory)
            carry, output = cell(tuple(kept), row[0])
            return Memory(*carry), output

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        result: tuple[Memory, Array] = scan(nn.OptimizedLSTMCell(self.size), memory, (inputs, first))
        return result


def with_previous(features: Array, action: Array, actions: int, reward: Array, first: Array) -> Array:
    """Features [..., F] beside the action before, as one of `actions`, and its reward; zeros where an episode begins.

    Args:
        features: of the observations.
        action: [...] int32, taken in the row before.
        actions: how many there are.
        reward: [...] float32, came back for it.
        first: [...] bool, there is no row before.

    Returns:
        [..., F + actions + 1] float32.
    """
    before = jnp.concatenate([jax.nn.one_hot(action, actions), reward[..., None]], axis=-1)
    return jnp.concatenate([features, jnp.where(first[..., None], 0.0, before)], axis=-1)
