"""The loss of Ape-X DQN: n-step double Q-learning with importance weights (Horgan et al. 2018, section 3.1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agents.sequences import n_step_targets


class QLoss(NamedTuple):
    """The loss, and the errors that become priorities."""

    total: Float[Array, ""]
    td_error: Float[Array, "T B"]  # 0 where not valid


def double_q_values(online: Float[Array, "T B A"], target: Float[Array, "T B A"]) -> Float[Array, "T B"]:
    """The target network's value of the action that the online network prefers (van Hasselt et al. 2016)."""
    best = jnp.argmax(online, axis=2, keepdims=True)
    return jax.lax.stop_gradient(jnp.take_along_axis(target, best, axis=2)[:, :, 0])


def q_loss(
    q: Float[Array, "K B A"],
    action: Int[Array, "K B"],
    valid: Bool[Array, "K B"],
    reward: Float[Array, "T B"],
    discount: Float[Array, "T B"],
    truncated: Bool[Array, "T B"],
    next_value: Float[Array, "T B"],
    weight: Float[Array, " B"],
    *,
    n_step: int,
) -> QLoss:
    """Half the squared n-step TD error of the first K rows, weighted by sample and averaged over them.

    Args:
        q: of the rows that are trained on.
        action: taken in each of them.
        valid: which of them count.
        reward: of the trained rows and the n_step - 1 after them, T = K + n_step - 1.
        discount: 0 where the episode terminated.
        truncated: a time limit cut the episode after the row.
        next_value: of the observation after each row.
        weight: importance weights.
        n_step: rewards in a target.
    """
    targets = n_step_targets(reward, discount, truncated, next_value, n_step)[: q.shape[0]]
    taken = jnp.take_along_axis(q, action[:, :, None], axis=2)[:, :, 0]
    td_error = jnp.where(valid, targets - taken, 0.0)
    return QLoss(total=0.5 * jnp.mean(weight[None, :] * jnp.square(td_error)), td_error=td_error)
