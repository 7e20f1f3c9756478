"""Importance weights of prioritised replay (Schaul et al. 2016, section 3.4), exact over several shards."""

import jax.numpy as jnp

from replay.steps import Array, SampleInfo


def importance_weights(info: SampleInfo, exponent: Array | float) -> Array:
    """Weights [B] float32, normalised so that the largest of the batch is 1.

    (N x probability)^-exponent, times what makes up for shards that answered more or less than their share; with an
    exponent of 1 the weighted mean is that over items drawn uniformly.
    """
    weight = info.correction * (info.items.astype(jnp.float32) * info.probability) ** -exponent
    return weight / jnp.max(weight)


def anneal(step: Array, start: float, end: float, steps: int) -> Array:
    """Linear from `start` at step 0 to `end` at `steps` and after. Scalar float32."""
    progress = jnp.minimum(jnp.asarray(step, jnp.float32) / steps, 1.0)
    return start + progress * (end - start)
