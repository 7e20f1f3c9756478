"""R2D2's loss: n-step double Q-learning of rescaled values (Kapturowski et al. 2019, section 2.3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float, Int

from agents.sequences import masked_mean

RESCALING = rlax.SIGNED_HYPERBOLIC_PAIR  # h and its inverse


class RecurrentQLoss(NamedTuple):
    """The loss, and the errors that become priorities."""

    total: Float[Array, ""]
    td_error: Float[Array, "K B"]  # of rescaled values; 0 where not valid


def recurrent_q_loss(
    q: Float[Array, "K B A"],
    action: Int[Array, "K B"],
    valid: Bool[Array, "K B"],
    reward: Float[Array, "K B"],
    discount: Float[Array, "K B"],
    bootstrap_online: Float[Array, "K B A"],
    bootstrap_target: Float[Array, "K B A"],
    weight: Float[Array, " B"],
) -> RecurrentQLoss:
    """Half the squared error of h(reward + discount h^-1(q of the best action)), weighted by sequence, over valid rows.

    Args:
        q: of the rows that are trained on; all q are of rescaled values.
        action: taken in each of them.
        valid: which of them count.
        reward: sum of the discounted rewards of each row's window, as they are.
        discount: what the value after the window counts.
        bootstrap_online: q of the observation after the window. The online network chooses the action there,
        bootstrap_target: and the target network says what it is worth.
        weight: importance weights.
    """
    best = jnp.argmax(bootstrap_online, axis=2)
    target = RESCALING.apply(reward + discount * RESCALING.apply_inv(_of_action(bootstrap_target, best)))
    td_error = jnp.where(valid, jax.lax.stop_gradient(target) - _of_action(q, action), 0.0)
    return RecurrentQLoss(masked_mean(0.5 * weight[None, :] * jnp.square(td_error), valid), td_error)


def _of_action(q: Float[Array, "K B A"], action: Int[Array, "K B"]) -> Float[Array, "K B"]:
    return jnp.take_along_axis(q, action[:, :, None], axis=2)[:, :, 0]
