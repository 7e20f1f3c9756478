"""IMPALA's loss: V-trace targets and policy gradient (Espeholt et al. 2018, section 4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax
from jaxtyping import Array, Bool, Float, Int

from agents.sequences import masked_mean


class ImpalaLoss(NamedTuple):
    """The loss and its parts, all scalars."""

    total: Array
    policy: Array
    baseline: Array
    entropy: Array
    clipped: Array  # share of the importance ratios above the bound


def impala_loss(
    logits: Float[Array, "T B A"],
    values: Float[Array, "T+1 B"],
    behaviour_logits: Float[Array, "T B A"],
    action: Int[Array, "T B"],
    reward: Float[Array, "T B"],
    discount: Float[Array, "T B"],
    valid: Bool[Array, "T B"],
    *,
    clip_rho: float,
    baseline_cost: float,
    entropy_cost: float,
) -> ImpalaLoss:
    """The V-trace actor-critic loss, averaged over valid rows.

    Args:
        logits: of the policy that learns.
        values: of every observation, the one to bootstrap from included.
        behaviour_logits: of the policy that acted.
        action: taken in each row.
        reward: 0 where not valid.
        discount: 0 where the episode terminated and where not valid.
        valid: rows that count. What is not valid passes no correction back: its importance ratio is 0, so the row
            before bootstraps from the value of its observation alone, as a time limit wants it.
        clip_rho: rho-bar, of the targets and of the policy gradient's ratio. The traces' bound c-bar is 1.
        baseline_cost: weight of half the squared error of the values.
        entropy_cost: weight of the policy's entropy, which is maximised.
    """
    log_probability = _log_probability(logits, action)
    ratio = jnp.where(valid, jnp.exp(log_probability - _log_probability(behaviour_logits, action)), 0.0)
    vtrace = jax.vmap(
        lambda v, next_v, r, d, rho: rlax.vtrace_td_error_and_advantage(
            v, next_v, r, d, rho, clip_rho_threshold=clip_rho, clip_pg_rho_threshold=clip_rho
        ),
        in_axes=1,
        out_axes=1,
    )(values[:-1], jax.lax.stop_gradient(values[1:]), reward, discount, jax.lax.stop_gradient(ratio))
    probability = jax.nn.softmax(logits)
    entropy = masked_mean(-jnp.sum(probability * jax.nn.log_softmax(logits), axis=2), valid)
    policy = masked_mean(-log_probability * jax.lax.stop_gradient(vtrace.pg_advantage), valid)
    baseline = masked_mean(0.5 * jnp.square(vtrace.errors), valid)
    return ImpalaLoss(
        total=policy + baseline_cost * baseline - entropy_cost * entropy,
        policy=policy,
        baseline=baseline,
        entropy=entropy,
        clipped=masked_mean((ratio > clip_rho).astype(jnp.float32), valid),
    )


def _log_probability(logits: Float[Array, "T B A"], action: Int[Array, "T B"]) -> Float[Array, "T B"]:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, :, None], axis=2)[:, :, 0]
