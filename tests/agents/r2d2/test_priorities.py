"""Priorities of sequences: by hand, and the actor's against the learner's with the same network."""

import dataclasses
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.r2d2.priorities import actor_priorities, sequence_priorities
from agents.r2d2.rescaling import rescale
from replay.spec import ReplaySpec
from tests.agents.r2d2.rollout import CONFIG, make, roll
from tests.agents.rows import rows


@pytest.mark.parametrize("xp", [np, jnp])
def test_the_largest_error_and_their_mean_are_mixed(xp: ModuleType):
    error, valid = xp.asarray([[1.0, 2.0], [-3.0, 9.0]]), xp.asarray([[True, True], [True, False]])
    given = sequence_priorities(error, valid, CONFIG, xp)
    np.testing.assert_allclose(given, [0.9 * 3 + 0.1 * 2 + 0.001, 2 + 0.001], rtol=1e-6)
    none = sequence_priorities(error, xp.zeros_like(valid), CONFIG, xp)
    np.testing.assert_allclose(none, 0.001, rtol=1e-6)


def test_five_rows_by_hand():
    replay = ReplaySpec(burn_in=1, trace=2, n_step=2, period=2, sampler="prioritized")
    config = dataclasses.replace(CONFIG, replay=replay)
    said = {name: np.asarray(values, np.float32)[:, None] for name, values in (
        ("q_taken", [99, 0.5, 1, 99, 99]), ("q_max", [99, 99, 99, rescale(8.0), rescale(24.0)])
    )}  # fmt: skip
    # Row 1: h(1 + 2/2 + 8/4) - 0.5. Row 2: h(2 + 4/2 + 24/4) - 1.
    errors = [rescale(4.0) - 0.5, rescale(10.0) - 1]
    given = actor_priorities(rows([99, 1, 2, 4, 99], extras=said), config)
    np.testing.assert_allclose(given, [0.9 * errors[1] + 0.1 * np.mean(errors) + 0.001], rtol=1e-4)
    assert given.dtype == np.float32
    # Row 1 terminates: h(1) - 0.5, and row 2 is invalid.
    given = actor_priorities(rows([99, 1, 2, 4, 99], terminated=[1], extras=said), config)
    np.testing.assert_allclose(given, [0.5 - rescale(1.0) + 0.001], rtol=1e-4)


def test_the_actors_are_the_learners_while_the_networks_are_equal():
    # So the learner's unroll from a stored state, its inputs, resets, windows and errors agree with what acted.
    agent = make()
    learner = agent.init_learner(jax.random.PRNGKey(0))
    batch = roll(agent, learner.params, length=40, environments=32).sequence(17, CONFIG.replay.sequence_length)
    trained = slice(CONFIG.replay.burn_in, CONFIG.replay.burn_in + CONFIG.replay.trace)
    steps = batch.steps
    assert steps.terminated[trained].any()  # controls: there is something to get wrong
    assert steps.truncated[trained].any()
    assert agent.initial_priorities is not None
    given, update = agent.initial_priorities(steps._replace(observation=None)), jax.jit(agent.update)
    np.testing.assert_allclose(given, update(learner, batch)[1].priorities, rtol=1e-3, atol=1e-4)
    moved = learner._replace(target_params=jax.tree.map(lambda leaf: leaf + 0.1, learner.target_params))
    assert np.abs(given - update(moved, batch)[1].priorities).max() > 1e-2
