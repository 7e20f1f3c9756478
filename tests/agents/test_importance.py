import numpy as np
import pytest

from agents.importance import anneal, importance_weights
from replay.steps import SampleInfo


def info(probability, correction, items=100):
    count = len(probability)
    return SampleInfo(
        np.asarray(probability, np.float32), np.asarray(correction, np.float32), np.full(count, items, np.int32)
    )


def test_weights_by_hand():
    # N p = 4, 1, 0.25; to the power -0.5: 0.5, 1, 2; the largest is made 1.
    np.testing.assert_allclose(
        importance_weights(info([0.04, 0.01, 0.0025], [1, 1, 1]), 0.5), [0.25, 0.5, 1.0], rtol=1e-6
    )


def test_an_exponent_of_zero_leaves_what_the_shards_need():
    np.testing.assert_allclose(importance_weights(info([0.04, 0.01], [2, 1]), 0.0), [1.0, 0.5], rtol=1e-6)


def test_an_exponent_of_one_gives_the_uniform_mean():
    """Over many draws, also where a shard answers twice as often as it should."""
    rng = np.random.default_rng(0)
    values, probability = np.asarray([1.0, 2.0, 6.0]), np.asarray([0.2, 0.3, 0.5])
    density = np.asarray([0.4, 0.2, 0.4])  # what they are really drawn with
    drawn = rng.choice(3, 200_000, p=density)
    weight = importance_weights(info(probability[drawn], (probability / density)[drawn], items=3), 1.0)
    assert np.average(values[drawn], weights=weight) == pytest.approx(3.0, abs=0.03)
    assert abs(values[drawn].mean() - 3.0) > 0.1  # control: without weights it is another


def test_annealing_is_linear_and_ends():
    assert [float(anneal(np.int32(step), 0.4, 1.0, 10)) for step in (0, 5, 10, 99)] == pytest.approx([0.4, 0.7, 1, 1])
