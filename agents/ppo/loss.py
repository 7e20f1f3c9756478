"""PPO's advantages and loss (Schulman et al. 2017, equations 7, 9 and 11)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float

from agents.sequences import masked_mean


class PpoLoss(NamedTuple):
    """The loss, its parts and what tells of the step's size, all scalars."""

    total: Array
    policy: Array
    value: Array
    entropy: Array
    clipped: Array  # share of the probability ratios outside the clip's range
    divergence: Array  # estimate of KL(behaviour || policy) (Schulman 2020, "Approximating KL divergence", k3)


def advantages(
    reward: Float[Array, "T B"],
    discount: Float[Array, "T B"],
    valid: Bool[Array, "T B"],
    values: Float[Array, "T+1 B"],
    *,
    trace_decay: float,
) -> Float[Array, "T B"]:
    """Generalised advantage estimates, cut where an episode ends.

    Args:
        reward: 0 where not valid.
        discount: 0 where the episode terminated, and where not valid.
        valid: rows where an action was taken. The row before one that isn't bootstraps from its observation's value
            alone, as a time limit wants it: the trace goes no further.
        values: of every observation, the one to bootstrap from included.
        trace_decay: lambda.

    Returns:
        The advantages; anything where not valid.
    """
    goes_on = jnp.concatenate([valid[1:], jnp.ones_like(valid[:1])])
    estimate = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=1, out_axes=1)
    result: Array = estimate(reward, discount, trace_decay * goes_on.astype(jnp.float32), values)
    return result


def normalize(values: Float[Array, "*axes"], mask: Bool[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Values with mean 0 and deviation 1 over the entries where mask is True."""
    centred: Array = values - masked_mean(values, mask)
    return centred / (jnp.sqrt(masked_mean(jnp.square(centred), mask)) + 1e-8)


def ppo_loss(
    log_probability: Float[Array, "N B"],
    behaviour_log_probability: Float[Array, "N B"],
    entropy: Float[Array, "N B"],
    advantage: Float[Array, "N B"],
    value: Float[Array, "N B"],
    old_value: Float[Array, "N B"],
    target: Float[Array, "N B"],
    valid: Bool[Array, "N B"],
    *,
    clip: float,
    value_clip: float,
    value_cost: float,
    entropy_cost: float,
) -> PpoLoss:
    """The clipped surrogate, clipped value error and entropy bonus of a minibatch, averaged over valid rows.

    Args:
        log_probability: of the actions under the policy that learns.
        behaviour_log_probability: of the actions under the policy that took them.
        entropy: of the policy that learns.
        advantage: of the actions.
        value: that learns.
        old_value: before this update.
        target: what the values are fitted to.
        valid: rows that count.
        clip: epsilon; the ratio gains nothing outside of [1 - epsilon, 1 + epsilon].
        value_clip: the value gains nothing further than this from the old one; 0 for no bound.
        value_cost: weight of half the squared error of the values.
        entropy_cost: weight of the entropy, which is maximised.
    """
    log_ratio = jnp.where(valid, log_probability - behaviour_log_probability, 0.0)
    ratio = jnp.exp(log_ratio)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)
    error = jnp.square(value - target)
    if value_clip:
        near = old_value + jnp.clip(value - old_value, -value_clip, value_clip)
        error = jnp.maximum(error, jnp.square(near - target))
    policy, value_loss = -masked_mean(gain, valid), 0.5 * masked_mean(error, valid)
    mean_entropy = masked_mean(entropy, valid)
    return PpoLoss(
        total=policy + value_cost * value_loss - entropy_cost * mean_entropy,
        policy=policy,
        value=value_loss,
        entropy=mean_entropy,
        clipped=masked_mean((jnp.abs(ratio - 1.0) > clip).astype(jnp.float32), valid),
        divergence=masked_mean(ratio - 1.0 - log_ratio, valid),
    )
