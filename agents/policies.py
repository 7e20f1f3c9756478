"""Stochastic policies: what a network says of an action, as a distribution over actions."""

from typing import Any

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import assert_never

from replay.spec import ActionSpec, ContinuousAction, DiscreteAction
from replay.steps import Array, Tree

Parameters = Tree  # {"logits": [..., A]} of discrete actions, or {"mean": [..., A], "log_deviation": [..., A]}


class PolicyHead(nn.Module):
    """The parameters of a policy: logits, or a Gaussian's mean and a deviation that is the same in every state."""

    action: ActionSpec

    @nn.compact
    def __call__(self, features: Array) -> Parameters:
        """[N, F] -> parameters [N, A]."""
        small = nn.initializers.orthogonal(0.01)  # makes the first policy nearly uniform, or nearly centred
        match self.action:
            case DiscreteAction(count=count):
                return {"logits": nn.Dense(count, kernel_init=small)(features)}
            case ContinuousAction(size=size):
                mean = nn.Dense(size, kernel_init=small)(features)
                log_deviation = self.param("log_deviation", nn.initializers.zeros, (size,))
                return {"mean": mean, "log_deviation": jnp.broadcast_to(log_deviation, mean.shape)}
            case _:
                assert_never(self.action)


def distribution(parameters: Parameters) -> Any:
    """The distrax distribution over actions of a PolicyHead's parameters.

    A Gaussian's actions are neither squashed nor clipped: they are stored as they were drawn, with the density they
    were drawn with, and the environment clips them to its bounds.
    """
    if "logits" in parameters:
        return distrax.Categorical(logits=parameters["logits"])
    return distrax.MultivariateNormalDiag(parameters["mean"], jnp.exp(parameters["log_deviation"]))


def as_stored(action: Array) -> Array:
    """Actions in the dtype that replay keeps: int32 or float32."""
    return action.astype(jnp.int32 if jnp.issubdtype(action.dtype, jnp.integer) else jnp.float32)


def sample_with_log_probability(key: jax.Array, parameters: Parameters) -> tuple[Array, Array]:
    """Actions [B] int32 or [B, A] float32, and the log of their probability (density) [B]."""
    policy = distribution(parameters)
    action = policy.sample(seed=key)
    return as_stored(action), policy.log_prob(action)
