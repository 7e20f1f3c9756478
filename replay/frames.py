"""Frame stacks rebuilt from frames that were stored once."""

import jax
import jax.numpy as jnp


def rebuild_stacks(frames: jax.Array, first: jax.Array, depth: int) -> jax.Array:
    """The stacks that the environments showed, from single frames.

    The stack of row t holds the frames of rows t - depth + 1 .. t, the newest last. Frames of an earlier episode don't
    belong to it: in their place stands the episode's first frame, with which EnvPool fills the stack at a reset.

    Args:
        frames: [N, depth - 1 + T, *frame]; the frames of T rows, after those of the depth - 1 rows before.
        first: [N, depth - 1 + T] bool, where an episode begins, for the same rows. False for context rows whose frames
            are taken from a real stack (then they are right as they are).
        depth: frames in a stack.

    Returns:
        [T, N, depth, *frame], time-major.
    """
    batch, rows = first.shape
    position = jnp.arange(rows)
    start = jax.lax.cummax(jnp.where(first, position[None], 0), axis=1)  # [N, rows] where each row's episode began
    back = jnp.arange(depth - 1, -1, -1)
    source = jnp.maximum(position[None, :, None] - back[None, None], start[:, :, None])  # [N, rows, depth]
    source = jnp.swapaxes(source[:, depth - 1 :], 0, 1)
    return frames[jnp.arange(batch)[None, :, None], source]
