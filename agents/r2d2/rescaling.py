"""Value rescaling in numpy, for actors: see rlax.SIGNED_HYPERBOLIC_PAIR, which the learner uses."""

import numpy as np

from replay.steps import Array

EPSILON = 1e-3  # rlax's default, and the paper's


def rescale(value: Array) -> Array:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Kapturowski et al. 2019, section 2.3)."""
    return np.sign(value) * (np.sqrt(np.abs(value) + 1.0) - 1.0) + EPSILON * value


def restore(value: Array) -> Array:
    """The inverse of rescale()."""
    root = np.sqrt(1.0 + 4.0 * EPSILON * (np.abs(value) + 1.0 + EPSILON))
    return np.sign(value) * (np.square((root - 1.0) / (2.0 * EPSILON)) - 1.0)
