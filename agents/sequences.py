"""Time is shifted here and nowhere else: discounts, targets and masks over the rows of a sequence.

Arrays are time-major [T, B]. Rows whose `valid` is False (an episode's last observation, or padding) take part in
nothing: no loss, no reward, and no value passes over them.
"""

import jax
import jax.numpy as jnp
import rlax

from replay.steps import Array, Steps


def discounts_of(steps: Steps, discount: float) -> Array:
    """What the value after each row counts: 0 after a termination, and on rows that aren't valid. [T, B] float32."""
    return discount * (steps.valid & ~steps.terminated).astype(jnp.float32)


def rewards_of(steps: Steps, clip: float) -> Array:
    """Rewards clipped to [-clip, clip] (0: as they are), 0 on rows that aren't valid. [T, B] float32."""
    reward = jnp.clip(steps.reward, -clip, clip) if clip else steps.reward
    return jnp.where(steps.valid, reward, 0.0)


def n_step_targets(reward: Array, discount: Array, truncated: Array, next_value: Array, n_step: int) -> Array:
    """Sums of n discounted rewards and the value after them; fewer where the episode or the sequence ends sooner.

    Args:
        reward: [T, B].
        discount: [T, B], 0 where the episode terminated.
        truncated: [T, B] bool; the value right after such a row counts, and nothing from beyond.
        next_value: [T, B], of the observation after each row.
        n_step: n.

    Returns:
        [T, B]; row t is reward[t] + discount[t] * (reward[t+1] + ...). Gradients don't flow through it.
    """
    # rlax mixes value and return by lambda: 0 takes the value at once, which is what a time limit asks for.
    goes_on = 1.0 - truncated.astype(jnp.float32)
    targets = jax.vmap(
        lambda r, d, v, on: rlax.n_step_bootstrapped_returns(r, d, v, n_step, on), in_axes=1, out_axes=1
    )(reward, discount, next_value, goes_on)
    return jax.lax.stop_gradient(targets)


def masked_mean(values: Array, mask: Array) -> Array:
    """The mean over the entries where mask is True; 0 if there are none."""
    counted = mask.astype(jnp.float32)
    return jnp.sum(values * counted) / jnp.maximum(jnp.sum(counted), 1.0)
