import jax
import jax.numpy as jnp
import numpy as np

from agents.agent import Fleet
from agents.exploration import epsilon_greedy, epsilon_ladder


def test_the_ladder_by_hand():
    # 0.5^(1 + 2 i / 2) for i = 0, 1, 2
    np.testing.assert_allclose(epsilon_ladder(Fleet(0, 1, 3), 0.5, 2.0), [0.5, 0.25, 0.125], rtol=1e-6)


def test_the_ladder_runs_on_over_all_actors():
    whole = epsilon_ladder(Fleet(0, 1, 6), 0.4, 7.0)
    parts = [epsilon_ladder(Fleet(actor, 3, 2), 0.4, 7.0) for actor in range(3)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-6)
    assert len(set(whole.tolist())) == 6
    np.testing.assert_allclose(whole[-1], 0.4**8, rtol=1e-5)


def test_a_single_environment_explores_most():
    np.testing.assert_allclose(epsilon_ladder(Fleet(0, 1, 1), 0.4, 7.0), [0.4], rtol=1e-6)


def test_each_environment_explores_as_often_as_it_should():
    epsilon = jnp.asarray([0.0, 0.3, 1.0])
    values = jnp.broadcast_to(jnp.asarray([[0.0, 5.0, 1.0]]), (3, 3))
    keys = jax.random.split(jax.random.PRNGKey(0), 4000)
    actions = np.asarray(jax.vmap(lambda key: epsilon_greedy(key, values, epsilon))(keys))
    assert actions.dtype == np.int32
    # A random action is one of the two others in two of three cases.
    np.testing.assert_allclose((actions != 1).mean(axis=0), [0, 0.2, 2 / 3], atol=0.02)
    assert set(actions[:, 2]) == {0, 1, 2}
