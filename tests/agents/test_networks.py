import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks import (
    DuelingHead,
    PolicyValueHead,
    categories,
    channels_last,
    encode,
    is_image,
    make_torso,
    over_time,
    scale,
)
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec

KEY = jax.random.PRNGKey(0)
VECTOR = ArraySpec(shape=(4,), dtype="float32")
BOARD = ArraySpec(shape=(10, 5), dtype="float32")
ATARI = ArraySpec(shape=(4, 84, 84), dtype="uint8", stacked=True)
MINATAR = ArraySpec(shape=(10, 10, 4), dtype="uint8")
COLOURS = ArraySpec(shape=(2, 40, 36, 3), dtype="uint8", stacked=True)


def environment(observation):
    return EnvironmentSpec(observation=observation, action=DiscreteAction(count=3))


def zeros(spec, batch=2):
    return jnp.zeros((batch, *spec.shape), spec.dtype)


@pytest.mark.parametrize(
    ("network", "spec"),
    [
        ("mlp", VECTOR),
        ("mlp", BOARD),
        ("mlp", ATARI),
        ("small_cnn", ATARI),
        ("small_cnn", MINATAR),
        ("small_cnn", COLOURS),
        ("nature_cnn", ATARI),
        ("nature_cnn", COLOURS),
        ("impala_resnet", MINATAR),
        ("impala_resnet", COLOURS),
    ],
)
def test_every_torso_gives_features(network, spec):
    torso = make_torso(network, (16, 8), environment(spec))
    shape = jax.eval_shape(lambda key: torso.init_with_output(key, zeros(spec))[0], KEY)
    assert (shape.shape, shape.dtype) == ((2, 8), jnp.float32)


def test_the_weights_are_those_of_the_papers():
    def count(network, sizes):
        torso = make_torso(network, sizes, environment(ATARI))
        params = jax.eval_shape(torso.init, KEY, zeros(ATARI))
        return sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(params))

    # (8 8 4 + 1) 32 + (4 4 32 + 1) 64 + (3 3 64 + 1) 64 + (7 7 64 + 1) 512
    assert count("nature_cnn", (512,)) == 1_684_128
    # (8 8 4 + 1) 16 + (4 4 16 + 1) 32 + (9 9 32 + 1) 256
    assert count("small_cnn", (256,)) == 4_112 + 8_224 + 663_808


def test_a_stack_becomes_channels_and_bytes_fractions():
    frames = np.arange(2 * 4 * 84 * 84).reshape(2, 4, 84, 84).astype(np.uint8)
    image = channels_last(scale(jnp.asarray(frames), ATARI), ATARI)
    assert image.shape == (2, 84, 84, 4)
    assert image.dtype == jnp.float32
    np.testing.assert_allclose(image[1, 7, 9, 2], frames[1, 2, 7, 9] / 255)
    assert scale(jnp.asarray([3.0]), VECTOR) == 3  # control: only bytes are scaled


def test_a_category_becomes_one_hot():
    suit = ArraySpec(shape=(), dtype="int32", minimum=2, maximum=4)
    assert encode(jnp.asarray([2, 4]), suit).tolist() == [[1, 0, 0], [0, 0, 1]]
    torso = make_torso("mlp", (8,), environment(suit))
    params = torso.init(KEY, zeros(suit))["params"]
    assert params["Dense_0"]["kernel"].shape == (3, 8)


def test_other_numbers_stay_what_they_are():
    others = [
        ArraySpec(shape=(2,), dtype="int32", minimum=0, maximum=3),  # of a MultiDiscrete space, or an image's
        ArraySpec(shape=(), dtype="int32"),  # without bounds
        ArraySpec(shape=(), dtype="int32", minimum=0, maximum=10_000),  # a count
        ArraySpec(shape=(), dtype="float32", minimum=0, maximum=3),
        ArraySpec(shape=(), dtype="bool", minimum=0, maximum=1),
    ]
    assert [categories(spec) for spec in others] == [0] * 5
    assert encode(jnp.asarray([3.0]), others[3]) == 3


def test_the_axis_of_channels_is_found():
    plain = ArraySpec(shape=(3, 64, 64), dtype="uint8")
    assert channels_last(zeros(plain), plain).shape == (2, 64, 64, 3)
    assert channels_last(zeros(MINATAR), MINATAR).shape == (2, 10, 10, 4)
    assert channels_last(zeros(COLOURS), COLOURS).shape == (2, 40, 36, 6)
    assert [is_image(spec) for spec in (VECTOR, BOARD, ATARI, COLOURS)] == [False, False, True, True]


@pytest.mark.parametrize("network", ["mlp", "small_cnn"])
def test_every_leaf_of_a_dict_is_seen(network):
    specs = {"picture": ArraySpec(shape=(2, 36, 36), dtype="uint8", stacked=True), "speed": VECTOR}
    torso = make_torso(network, (8,), environment(specs))
    observation = {name: zeros(spec, 1) for name, spec in specs.items()}
    params = torso.init(KEY, observation)
    base = torso.apply(params, observation)
    for name in specs:
        assert not np.allclose(base, torso.apply(params, {**observation, name: observation[name] + 7}))


@pytest.mark.parametrize(("size", "value", "advantage"), [(8, "Dense_0", "Dense_2"), (0, "Dense_0", "Dense_1")])
def test_dueling_heads_hold_the_advantages_mean_at_zero(size: int, value: str, advantage: str):
    head = DuelingHead(make_torso("mlp", (8,), environment(VECTOR)), actions=3, size=size)
    inputs = jax.random.normal(KEY, (5, 4))
    params = head.init(KEY, inputs)
    q = head.apply(params, inputs)
    assert q.shape == (5, 3)
    # A constant added to all advantages (the bias of the last layer) changes nothing, to the value everything.
    layers = params["params"]
    assert (layers[value]["bias"].shape, layers[advantage]["bias"].shape) == ((1,), (3,))
    assert len(layers) == (5 if size else 3)  # the torso's among them

    def shifted(layer):
        return {"params": {**layers, layer: {**layers[layer], "bias": layers[layer]["bias"] + 5}}}

    np.testing.assert_allclose(head.apply(shifted(advantage), inputs), q, atol=1e-5)
    np.testing.assert_allclose(head.apply(shifted(value), inputs), q + 5, atol=1e-5)


def test_the_first_policy_is_nearly_uniform():
    head = PolicyValueHead(make_torso("mlp", (64,), environment(VECTOR)), actions=3)
    inputs = jax.random.normal(KEY, (100, 4))
    outputs = head.apply(head.init(KEY, inputs), inputs)
    assert outputs.value.shape == (100,)
    assert np.std(jax.nn.softmax(outputs.logits)) < 0.02
    assert np.std(outputs.value) > 0.1  # control: the inputs are seen at all


def test_time_and_batch_are_merged_and_split_again():
    inputs = jnp.arange(24.0).reshape(3, 2, 4)
    np.testing.assert_array_equal(over_time(lambda rows: rows.sum(axis=1), inputs), inputs.sum(axis=2))


@pytest.mark.parametrize(
    ("network", "sizes", "spec", "said"),
    [
        ("small_cnn", (8,), VECTOR, "network=mlp"),
        ("impala_resnet", (8,), BOARD, "network=mlp"),
        ("nature_cnn", (8,), MINATAR, "network=small_cnn"),
        ("mlp", (), VECTOR, "hidden_sizes"),
        ("mlp", (8, 0), VECTOR, "hidden_sizes"),
    ],
)
def test_networks_that_do_not_fit_are_refused(network, sizes, spec, said):
    with pytest.raises(ValueError, match=said):
        make_torso(network, sizes, environment(spec))
