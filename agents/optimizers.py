"""The optimisers that agents choose from by name."""

import optax

from agents.names import OptimizerName


def make_optimizer(
    name: OptimizerName, learning_rate: float, epsilon: float, max_gradient_norm: float
) -> optax.GradientTransformation:
    """Clips the gradient by its global norm, then takes an Adam step, or one of centered RMSProp with decay 0.95 as the
    DQN family uses it.
    """
    match name:
        case "adam":
            step = optax.adam(learning_rate, eps=epsilon)
        case "rmsprop":
            step = optax.rmsprop(learning_rate, decay=0.95, eps=epsilon, centered=True)
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), step)
