"""The loss of Ape-X DQN: n-step double Q-learning with importance weights (Horgan et al. 2018, section 3.1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float, Int

from agents.sequences import masked_mean


class QLoss(NamedTuple):
    """The loss, and the errors that become priorities."""

    total: Float[Array, ""]
    td_error: Float[Array, "K B"]  # 0 where not valid


def q_loss(
    q: Float[Array, "K B A"],
    action: Int[Array, "K B"],
    valid: Bool[Array, "K B"],
    reward: Float[Array, "K B"],
    discount: Float[Array, "K B"],
    bootstrap_online: Float[Array, "K B A"],
    bootstrap_target: Float[Array, "K B A"],
    weight: Float[Array, " B"],
) -> QLoss:
    """Half the squared n-step TD error, weighted by sample and averaged over the valid rows.

    Args:
        q: of the rows that are trained on.
        action: taken in each of them.
        valid: which of them count.
        reward: sum of the discounted rewards of each row's window.
        discount: what the value after the window counts.
        bootstrap_online: q of the observation after the window. The online network chooses the action there,
        bootstrap_target: and the target network says what it is worth (van Hasselt et al. 2016).
        weight: importance weights.
    """
    double_q = jax.vmap(jax.vmap(rlax.double_q_learning))
    td_error = jnp.where(valid, double_q(q, action, reward, discount, bootstrap_target, bootstrap_online), 0.0)
    return QLoss(total=masked_mean(0.5 * weight[None, :] * jnp.square(td_error), valid), td_error=td_error)
