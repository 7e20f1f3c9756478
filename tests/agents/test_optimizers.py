import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.optimizers import make_optimizer


def first_step(name, gradient, clip=40.0):
    optimizer = make_optimizer(name, 0.1, 1e-8, clip, 0.9)
    params = jnp.zeros(2)
    change, _ = optimizer.update(jnp.asarray(gradient), optimizer.init(params), params)
    return np.asarray(optax.apply_updates(params, change))


def test_first_steps_by_hand():
    np.testing.assert_allclose(first_step("adam", [3.0, -4.0]), [-0.1, 0.1], rtol=1e-4)
    # mean square 0.1 g^2; the deviation around the mean gradient, 0.1 g^2 - (0.1 g)^2 = 0.09 g^2
    np.testing.assert_allclose(first_step("rmsprop", [3.0, -4.0]), [-(0.1**0.5), 0.1**0.5], rtol=1e-3)
    np.testing.assert_allclose(first_step("centered_rmsprop", [3.0, -4.0]), [-1 / 3, 1 / 3], rtol=1e-3)


@pytest.mark.parametrize("clip", [1.0, 8.0])
def test_gradients_are_clipped_by_their_norm(clip):
    optimizer = make_optimizer("adam", 0.1, 1.0, clip, 0.9)  # a large epsilon lets the gradient's size show
    params = jnp.zeros(2)

    def step(gradient):
        return np.asarray(optimizer.update(jnp.asarray(gradient), optimizer.init(params), params)[0])

    clipped = np.asarray([3.0, 4.0]) * min(1.0, clip / 5)
    np.testing.assert_allclose(step([3.0, 4.0]), step(clipped), rtol=1e-5)
    assert np.allclose(step([3.0, 4.0]), step([6.0, 8.0])) == (clip <= 5)


def test_the_learning_rate_falls_to_0_in_a_straight_line():
    optimizer = make_optimizer("adam", 0.1, 1e-8, 40.0, 0.9, annealing_steps=4)
    params, sizes = jnp.zeros(1), []
    state = optimizer.init(params)
    for _ in range(6):
        change, state = optimizer.update(jnp.ones(1), state, params)  # Adam's steps are as long as the learning rate
        sizes.append(-float(change[0]))
    np.testing.assert_allclose(sizes, [0.1, 0.075, 0.05, 0.025, 0.0, 0.0], rtol=1e-4, atol=1e-9)
