"""The optimisers that agents choose from by name."""

import optax
from typing_extensions import assert_never

from agents.names import OptimizerName


def make_optimizer(
    name: OptimizerName, learning_rate: float, epsilon: float, max_gradient_norm: float, rmsprop_decay: float
) -> optax.GradientTransformation:
    """Clips the gradient by its global norm, then takes a step.

    "rmsprop" is Tieleman and Hinton's (2012), "centered_rmsprop" that of the DQN family (Graves 2013), which divides by
    the deviation around the mean gradient. Only these two look at `rmsprop_decay`.
    """
    match name:
        case "adam":
            step = optax.adam(learning_rate, eps=epsilon)
        case "rmsprop":
            step = optax.rmsprop(learning_rate, decay=rmsprop_decay, eps=epsilon)
        case "centered_rmsprop":
            step = optax.rmsprop(learning_rate, decay=rmsprop_decay, eps=epsilon, centered=True)
        case _:
            assert_never(name)
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), step)
