"""The optimisers that agents choose from by name."""

from typing import Any

import optax
from typing_extensions import assert_never

from agents.data_parallel import each_share
from agents.names import OptimizerName


def make_optimizer(
    name: OptimizerName,
    learning_rate: float,
    epsilon: float,
    max_gradient_norm: float,
    rmsprop_decay: float,
    annealing_steps: int = 0,
) -> optax.GradientTransformation:
    """Clips the gradient by its global norm, then takes a step.

    The learning rate falls linearly to 0 over `annealing_steps` of them; 0: it stays. "rmsprop" is Tieleman and
    Hinton's (2012), "centered_rmsprop" that of the DQN family (Graves 2013), which divides by the deviation around the
    mean gradient. Only these two look at `rmsprop_decay`.
    """
    rate = optax.linear_schedule(learning_rate, 0.0, annealing_steps) if annealing_steps else learning_rate
    match name:
        case "adam":
            step = optax.adam(rate, eps=epsilon)
        case "rmsprop":
            step = optax.rmsprop(rate, decay=rmsprop_decay, eps=epsilon)
        case "centered_rmsprop":
            step = optax.rmsprop(rate, decay=rmsprop_decay, eps=epsilon, centered=True)
        case _:
            assert_never(name)
    chain = optax.chain(optax.clip_by_global_norm(max_gradient_norm), step)
    return optax.GradientTransformation(chain.init, _on_every_device(chain.update))


def _on_every_device(update: optax.TransformUpdateFn) -> optax.TransformUpdateFn:
    """The same step on each of a learner's devices. Left to itself, XLA divides a layer as wide as the batch among
    them: its zeros and the batch's are one array to it.
    """

    def step(gradient: Any, state: Any, params: Any = None) -> Any:
        return each_share(update, (None, None, None), (None, None))(gradient, state, params)

    return step
