"""Networks that the agents share: a torso chosen by name, and heads on it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import assert_never

from agents.names import NetworkName
from replay.spec import ArraySpec, EnvironmentSpec, ObservationSpec
from replay.steps import Array, Tree

Result = TypeVar("Result")

MOST_CATEGORIES = 1024  # of one integer that are shown one-hot; beyond that it is a number
SMALL_IMAGE = 36  # pixels: below it the Atari networks' strides leave nothing of a side
ATARI_2013 = ((16, 8, 4), (32, 4, 2))  # channels, kernel, stride; Mnih et al. (2013)
ATARI_2015 = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. (2015)
MINATAR = ((16, 3, 1),)  # Young and Tian (2019)


class PolicyValue(NamedTuple):
    """What an actor-critic's network says."""

    logits: Array  # [B, A] float32
    value: Array  # [B] float32


class Convolutions(nn.Module):
    """Convolutions of (channels, kernel, stride), each followed by a relu."""

    layers: Sequence[tuple[int, int, int]]

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """[B, H, W, C] -> [B, H', W', C']."""
        for channels, kernel, stride in self.layers:
            image = nn.relu(nn.Conv(channels, (kernel, kernel), (stride, stride), padding="VALID")(image))
        return image


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut (Espeholt et al. 2018, figure 3)."""

    channels: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[B, H, W, C] -> the same shape."""
        hidden = nn.Conv(self.channels, (3, 3))(nn.relu(inputs))
        return inputs + nn.Conv(self.channels, (3, 3))(nn.relu(hidden))


class ResNet(nn.Module):
    """The convolutions of the large architecture of Espeholt et al. (2018), figure 3, right."""

    channels: Sequence[int] = (16, 32, 32)

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """[B, H, W, C] -> [B, H / 8, W / 8, 32]."""
        for channels in self.channels:
            image = nn.max_pool(nn.Conv(channels, (3, 3))(image), (3, 3), (2, 2), padding="SAME")
            image = ResidualBlock(channels)(ResidualBlock(channels)(image))
        return nn.relu(image)


class Torso(nn.Module):
    """Takes observations as the environment shows them, and gives features. Made by make_torso(), which checks.

    Of a dict the images go through convolutions of their own, and join the other leaves before the dense layers.
    """

    network: NetworkName
    hidden_sizes: Sequence[int]
    environment: EnvironmentSpec

    @nn.compact
    def __call__(self, observation: Tree) -> Array:
        """[B, *obs] -> [B, hidden_sizes[-1]] float32."""
        features = []
        for name, spec in sorted(leaf_specs(self.environment.observation).items()):
            leaf = encode(observation[name] if name else observation, spec)
            if self.network != "mlp" and is_image(spec):
                leaf = _convolutions(self.network, spec)(channels_last(leaf, spec))
            features.append(leaf.reshape(leaf.shape[0], -1))
        hidden = jnp.concatenate(features, axis=1)
        activation = nn.tanh if self.network == "mlp" else nn.relu
        for size in self.hidden_sizes:
            hidden = activation(nn.Dense(size)(hidden))
        return hidden


class PolicyValueHead(nn.Module):
    """A torso under a policy and a value."""

    torso: nn.Module
    actions: int

    @nn.compact
    def __call__(self, observation: Tree) -> PolicyValue:
        """[B, *obs] -> logits [B, A] and value [B]."""
        hidden = self.torso(observation)
        # Small weights make the first policy nearly uniform.
        logits = nn.Dense(self.actions, kernel_init=nn.initializers.orthogonal(0.01))(hidden)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(hidden)
        return PolicyValue(logits, value[:, 0])


class DuelingHead(nn.Module):
    """Action values as state value plus advantage (Wang et al. 2016, equation 9), over a torso."""

    torso: nn.Module
    actions: int
    size: int  # hidden units of each stream; 0: none, both are linear in the torso's features

    @nn.compact
    def __call__(self, observation: Tree) -> Array:
        """[B, *obs] -> q [B, A]."""
        hidden = self.torso(observation)
        value = nn.Dense(1)(self._stream(hidden))
        advantage = nn.Dense(self.actions)(self._stream(hidden))
        return value + advantage - jnp.mean(advantage, axis=1, keepdims=True)

    def _stream(self, hidden: Array) -> Array:
        return nn.relu(nn.Dense(self.size)(hidden)) if self.size else hidden


def make_torso(network: NetworkName, hidden_sizes: Sequence[int], environment: EnvironmentSpec) -> Torso:
    """The torso of a name, with dense layers of `hidden_sizes` at its end.

    "small_cnn" has 16 and 32 channels (Mnih et al. 2013), or for images below 36 pixels one layer of 16 (Young and Tian
    2019); "nature_cnn" is that of Mnih et al. (2015), "impala_resnet" the large one of Espeholt et al. (2018).

    Raises:
        ValueError: a convolutional network for an observation without an image, or for one that is too small.
    """
    if not hidden_sizes or min(hidden_sizes) < 1:
        raise ValueError(
            f"agent_config.hidden_sizes={tuple(hidden_sizes)!r} must be one or more sizes, each at least 1. "
            "Set agent_config.hidden_sizes=(64,)."
        )
    images = [spec for spec in leaf_specs(environment.observation).values() if is_image(spec)]
    if network != "mlp" and not images:
        raise ValueError(
            f"agent_config.network={network!r} wants an image [stack, H, W] or [H, W, C] in the observation, and this "
            f"environment shows {environment.observation}. Set agent_config.network=mlp."
        )
    small = [spec.shape for spec in images if min(_image_size(spec)) < SMALL_IMAGE]
    if network == "nature_cnn" and small:
        raise ValueError(
            f"agent_config.network='nature_cnn' wants images of {SMALL_IMAGE} pixels a side or more, and this "
            f"environment shows {small[0]}. Set agent_config.network=small_cnn."
        )
    return Torso(network, tuple(hidden_sizes), environment)


def leaf_specs(observation: ObservationSpec) -> Mapping[str, ArraySpec]:
    """The observation's arrays by name; a single one is named ""."""
    return {"": observation} if isinstance(observation, ArraySpec) else observation


def is_image(spec: ArraySpec) -> bool:
    """Whether an array can go through convolutions: [stack, H, W], [stack, H, W, C], [C, H, W] or [H, W, C]."""
    return len(spec.shape) == 3 or (spec.stacked and len(spec.shape) == 4)


def channels_last(image: Array, spec: ArraySpec) -> Array:
    """[B, *spec.shape] -> [B, H, W, C]; what is stacked becomes channels. XLA's CPU convolutions want it so."""
    if _channels_first(spec):
        image = jnp.moveaxis(image, 1, 3)
    return image.reshape(*image.shape[:3], -1)


def encode(leaf: Array, spec: ArraySpec) -> Array:
    """As float32: a category one-hot, for its number says nothing of how near two are; all else as scale() has it."""
    count = categories(spec)
    if count:
        return jax.nn.one_hot(leaf.astype(jnp.int32) - int(spec.minimum), count)
    return scale(leaf, spec)


def categories(spec: ArraySpec) -> int:
    """How many categories a single bounded integer (a Discrete space) tells apart; 0 for all else."""
    if spec.shape or np.dtype(spec.dtype).kind not in "iu" or not np.isfinite([spec.minimum, spec.maximum]).all():
        return 0
    count = int(spec.maximum - spec.minimum) + 1
    return count if count <= MOST_CATEGORIES else 0


def scale(leaf: Array, spec: ArraySpec) -> Array:
    """As float32; bytes come out within 0..1."""
    scaled = leaf.astype(jnp.float32)
    return scaled / 255.0 if spec.dtype == "uint8" else scaled


def over_time(function: Callable[[Tree], Result], inputs: Tree) -> Result:
    """Applies a function of [N, ...] to inputs [T, B, ...] at once, and gives back [T, B, ...].

    The batch comes first in N: so each of a learner's devices keeps its sequences, and none of their rows has to move.
    """
    time, batch = jax.tree_util.tree_leaves(inputs)[0].shape[:2]
    merged = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(batch * time, *leaf.shape[2:]), inputs)
    result: Any = jax.tree.map(
        lambda leaf: jnp.swapaxes(leaf.reshape(batch, time, *leaf.shape[1:]), 0, 1), function(merged)
    )
    return result  # type: ignore[no-any-return]


def _convolutions(network: NetworkName, spec: ArraySpec) -> nn.Module:
    match network:
        case "mlp":
            raise AssertionError("an MLP has no convolutions")
        case "small_cnn":
            return Convolutions(ATARI_2013 if min(_image_size(spec)) >= SMALL_IMAGE else MINATAR)
        case "nature_cnn":
            return Convolutions(ATARI_2015)
        case "impala_resnet":
            return ResNet()
        case _:
            assert_never(network)


def _channels_first(spec: ArraySpec) -> bool:
    return spec.stacked or spec.shape[0] < min(spec.shape[1:])


def _image_size(spec: ArraySpec) -> tuple[int, ...]:
    return spec.shape[1:3] if _channels_first(spec) else spec.shape[:2]
