"""Time is shifted here and nowhere else: discounts, n-step windows and masks over the rows of a sequence.

Arrays are time-major [T, B]. Rows whose `valid` is False (an episode's last observation, or padding) take part in
nothing: no loss, no reward, and no value passes over them. Functions work on JAX's and on numpy's arrays alike.
"""

from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay.steps import Array, Steps, Tree


class Windows(NamedTuple):
    """What up to n steps from each of the first K rows brought, and the row whose value counts after them."""

    reward: Array  # [K, B] float32, discounted sum
    discount: Array  # [K, B] float32, of the value to bootstrap from; 0 where the episode terminated
    bootstrap: Array  # [K, B] int32, row whose observation that value belongs to


def transitions_of(steps: Steps) -> Steps:
    """All rows but the last, of which only the observation means anything."""
    rows: Steps = jax.tree.map(lambda leaf: leaf[:-1], steps)
    return rows


def skip_rows(rows: Tree, count: int) -> Tree:
    """All rows but the first `count`."""
    return jax.tree.map(lambda leaf: leaf[count:], rows)


def preceding(values: Array, before: Array) -> Array:
    """Of each row [T, B, ...] the value of the row before it; of the first row `before` [B, ...]."""
    return jnp.concatenate([before[None], values[:-1]])


def discounts_of(steps: Steps, discount: float) -> Array:
    """What the value after each row counts: 0 after a termination, and on rows that aren't valid. [T, B] float32."""
    return discount * (steps.valid & ~steps.terminated).astype("float32")


def rewards_of(steps: Steps, clip: float, xp: ModuleType = jnp) -> Array:
    """Rewards clipped to [-clip, clip] (0: as they are), 0 on rows that aren't valid. [T, B] float32."""
    reward = xp.clip(steps.reward, -clip, clip) if clip else steps.reward
    return xp.where(steps.valid, reward, xp.zeros_like(reward))


def n_step_windows(
    steps: Steps, *, rows: int, n_step: int, discount: float, reward_clip: float, xp: ModuleType = jnp
) -> Windows:
    """Sums n rewards from each row on; fewer where the episode ends sooner. Nothing from beyond an end gets in.

    rlax.n_step_bootstrapped_returns wants the values of all rows to do this. With the rows' numbers instead the values
    of one row a window suffice: with n = 3 that saves four of seven passes of images through the network.

    Args:
        steps: [rows + n_step, B] rows.
        rows: K, of which windows are wanted.
        n_step: n.
        discount: of each step.
        reward_clip: see rewards_of().
        xp: jax.numpy, or numpy to compute outside of JAX.
    """
    batch = steps.reward.shape[1]
    rewards, discounts = rewards_of(steps, reward_clip, xp), discounts_of(steps, discount)
    # A row that isn't valid ends the window before it even where no flag says so: it is padding.
    goes_on = steps.valid[:-1] & ~(steps.terminated | steps.truncated)[:-1] & steps.valid[1:]
    running = steps.valid[:rows]
    total, product = xp.zeros_like(rewards[:rows]), xp.ones_like(discounts[:rows])
    bootstrap = xp.broadcast_to(xp.arange(rows, dtype="int32")[:, None], (rows, batch))
    for ahead in range(n_step):
        here = slice(ahead, ahead + rows)
        total = xp.where(running, total + product * rewards[here], total)
        product = xp.where(running, product * discounts[here], product)
        bootstrap = xp.where(running, bootstrap + 1, bootstrap)
        running = running & goes_on[here]
    return Windows(total, product, bootstrap)


def take_rows(values: Tree, rows: Array) -> Tree:
    """Values [T, B, ...] at rows [K, B] of each sequence: [K, B, ...]."""
    return jax.tree.map(lambda leaf: jax.vmap(lambda column, row: column[row], 1, 1)(leaf, rows), values)


def masked_mean(values: Array, mask: Array) -> Array:
    """The mean over the entries where mask is True; 0 if there are none. A value that isn't counted may be anything."""
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask.astype(jnp.float32)), 1.0)
