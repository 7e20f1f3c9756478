"""Networks that the agents share: torsos chosen by name, and heads."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.names import NetworkName
from replay.spec import ArraySpec, EnvironmentSpec
from replay.steps import Array, Tree

Result = TypeVar("Result")


class PolicyValue(NamedTuple):
    """What an actor-critic's network says."""

    logits: Array  # [B, A] float32
    value: Array  # [B] float32


class MLP(nn.Module):
    """Dense layers, each followed by a nonlinearity."""

    sizes: Sequence[int]
    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[B, ...] -> [B, sizes[-1]]."""
        hidden = inputs.reshape(inputs.shape[0], -1)
        for size in self.sizes:
            hidden = self.activation(nn.Dense(size)(hidden))
        return hidden


class ConvTorso(nn.Module):
    """Convolutions of (channels, kernel, stride), then a dense layer."""

    layers: Sequence[tuple[int, int, int]]
    size: int

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """[B, H, W, C] -> [B, size]."""
        hidden = image
        for channels, kernel, stride in self.layers:
            hidden = nn.relu(nn.Conv(channels, (kernel, kernel), (stride, stride), padding="VALID")(hidden))
        return nn.relu(nn.Dense(self.size)(hidden.reshape(hidden.shape[0], -1)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut (Espeholt et al. 2018, figure 3)."""

    channels: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[B, H, W, C] -> the same shape."""
        hidden = nn.Conv(self.channels, (3, 3))(nn.relu(inputs))
        return inputs + nn.Conv(self.channels, (3, 3))(nn.relu(hidden))


class ImpalaResNet(nn.Module):
    """The large architecture of Espeholt et al. (2018), figure 3, right: 15 convolutions."""

    channels: Sequence[int] = (16, 32, 32)
    size: int = 256

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """[B, H, W, C] -> [B, size]."""
        hidden = image
        for channels in self.channels:
            hidden = nn.max_pool(nn.Conv(channels, (3, 3))(hidden), (3, 3), (2, 2), padding="SAME")
            hidden = ResidualBlock(channels)(ResidualBlock(channels)(hidden))
        return nn.relu(nn.Dense(self.size)(nn.relu(hidden).reshape(hidden.shape[0], -1)))


class PolicyValueHead(nn.Module):
    """A torso under a policy and a value."""

    torso: nn.Module
    actions: int

    @nn.compact
    def __call__(self, inputs: Array) -> PolicyValue:
        """[B, ...] -> logits [B, A] and value [B]."""
        hidden = self.torso(inputs)
        # Small weights make the first policy nearly uniform, and the first values nearly zero.
        logits = nn.Dense(self.actions, kernel_init=nn.initializers.orthogonal(0.01))(hidden)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(hidden)
        return PolicyValue(logits, value[:, 0])


class DuelingHead(nn.Module):
    """Action values as state value plus advantage (Wang et al. 2016, equation 9), over a torso."""

    torso: nn.Module
    actions: int
    size: int  # hidden units of each stream

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[B, ...] -> q [B, A]."""
        hidden = self.torso(inputs)
        value = nn.Dense(1)(nn.relu(nn.Dense(self.size)(hidden)))
        advantage = nn.Dense(self.actions)(nn.relu(nn.Dense(self.size)(hidden)))
        return value + advantage - jnp.mean(advantage, axis=1, keepdims=True)


def make_torso(network: NetworkName, hidden_sizes: Sequence[int], environment: EnvironmentSpec) -> nn.Module:
    """The torso of a name; `hidden_sizes` are the dense layers, of which a CNN takes the last as its only one.

    Raises:
        ValueError: a convolutional network for an observation that is no image.
    """
    if network != "mlp":
        spec = environment.observation
        if not isinstance(spec, ArraySpec) or len(spec.shape) != 3:
            raise ValueError(
                f"agent_config.network={network!r} wants one image as observation, and this environment shows {spec}. "
                "Set agent_config.network=mlp."
            )
    match network:
        case "mlp":
            return MLP(tuple(hidden_sizes), nn.tanh)
        case "small_cnn":  # Mnih et al. (2013)
            return ConvTorso(((16, 8, 4), (32, 4, 2)), hidden_sizes[-1])
        case "nature_cnn":  # Mnih et al. (2015)
            return ConvTorso(((32, 8, 4), (64, 4, 2), (64, 3, 1)), hidden_sizes[-1])
        case "impala_resnet":
            return ImpalaResNet(size=hidden_sizes[-1])


def prepare(observation: Tree, environment: EnvironmentSpec) -> Array:
    """The observation [B, *obs] as a network takes it: float32; frames scaled to 0..1 with the stack as last axis; the
    leaves of a dict flattened and joined in the order of their names.
    """
    spec = environment.observation
    if isinstance(spec, ArraySpec):
        return _prepare_leaf(observation, spec)
    leaves = [_prepare_leaf(observation[name], spec[name]) for name in sorted(spec)]
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def _prepare_leaf(leaf: Array, spec: ArraySpec) -> Array:
    if spec.stacked:
        leaf = jnp.moveaxis(leaf, 1, -1)
    scaled = leaf.astype(jnp.float32)
    return scaled / 255.0 if spec.dtype == "uint8" else scaled


def over_time(function: Callable[[Tree], Result], inputs: Tree) -> Result:
    """Applies a function of [N, ...] to inputs [T, B, ...] at once, and gives back [T, B, ...]."""
    time, batch = jax.tree_util.tree_leaves(inputs)[0].shape[:2]
    merged = jax.tree.map(lambda leaf: leaf.reshape(time * batch, *leaf.shape[2:]), inputs)
    result: Any = jax.tree.map(lambda leaf: leaf.reshape(time, batch, *leaf.shape[1:]), function(merged))
    return result  # type: ignore[no-any-return]


def count_weights(params: Any) -> int:
    """How many numbers there are in a tree of weights."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(params))
