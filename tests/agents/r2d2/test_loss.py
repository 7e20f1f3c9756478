"""R2D2's loss by hand."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from agents.r2d2.agent import StoredState, batch_loss
from agents.r2d2.config import R2d2Config
from agents.r2d2.loss import RESCALING, RecurrentQLoss, recurrent_q_loss
from agents.r2d2.rescaling import rescale, restore
from agents.recurrent import Memory, empty_memory
from replay.spec import ReplaySpec
from replay.steps import Batch, Steps
from tests.agents.rows import rows

CONFIG = R2d2Config(replay=ReplaySpec(burn_in=2, trace=1, n_step=2, period=1, sampler="prioritized"), discount=0.5)


def h(value: float) -> float:
    """By hand."""
    return math.copysign(math.sqrt(abs(value) + 1) - 1, value) + 0.001 * value


def two_sequences(**changes: Any) -> dict[str, Any]:
    """One row of two sequences, with three actions."""
    return {
        "q": jnp.asarray([[[1.0, 2.0, 3.0], [3.0, 0.0, 0.0]]]),
        "action": jnp.asarray([[1, 0]]),
        "valid": jnp.ones((1, 2), bool),
        "reward": jnp.asarray([[4.0, 3.0]]),
        "discount": jnp.asarray([[0.5, 0.0]]),
        "bootstrap_online": jnp.asarray([[[0.0, 5.0, 1.0], [0.0, 5.0, 1.0]]]),
        "bootstrap_target": jnp.asarray([[[h(80), h(8), h(80)], [h(80), h(8), h(80)]]]),
        "weight": jnp.asarray([0.5, 1.0]),
        **changes,
    }


def test_two_sequences_by_hand():
    # The online network prefers action 1, worth h^-1(h(8)) = 8: h(4 + 8/2) - 2. The other one terminated: h(3) - 3.
    loss = recurrent_q_loss(**two_sequences())
    np.testing.assert_allclose(loss.td_error, [[2.008 - 2, 1.003 - 3]], atol=1e-4)
    np.testing.assert_allclose(loss.total, (0.5 * 0.5 * 0.008**2 + 0.5 * 1.997**2) / 2, rtol=1e-3)


def test_targets_are_constants_and_only_the_taken_action_learns():
    for name in ("bootstrap_online", "bootstrap_target"):
        function = lambda value, name=name: recurrent_q_loss(**two_sequences(**{name: value})).total  # noqa: E731
        np.testing.assert_array_equal(jax.grad(function)(two_sequences()[name]), 0.0)
    gradient = jax.grad(lambda q: recurrent_q_loss(**two_sequences(q=q)).total)(two_sequences()["q"])
    np.testing.assert_allclose(gradient, [[[0, -0.5 * 0.008 / 2, 0], [1.997 / 2, 0, 0]]], atol=1e-4)


def test_invalid_rows_count_for_nothing():
    loss = recurrent_q_loss(**two_sequences(valid=jnp.asarray([[True, False]])))
    np.testing.assert_allclose(loss.td_error, [[0.008, 0.0]], atol=1e-4)
    np.testing.assert_allclose(loss.total, 0.5 * 0.5 * 0.008**2, rtol=0.05)


def test_rescaling_and_its_inverse_by_hand_and_by_rlax():
    np.testing.assert_allclose(rescale(np.asarray([3.0, -8.0, 0.0])), [1.003, -2.008, 0.0])
    np.testing.assert_allclose(restore(np.asarray([1.003, -2.008, 0.0])), [3.0, -8.0, 0.0], atol=1e-9)
    values = np.linspace(-50, 50, 41).astype(np.float32)
    np.testing.assert_allclose(rescale(values), RESCALING.apply(values), rtol=1e-5)
    np.testing.assert_allclose(restore(values), RESCALING.apply_inv(values), rtol=1e-3, atol=1e-3)


def of_rows(steps: Steps, target: float = 2.0) -> RecurrentQLoss:
    """With networks of two actions: the online one says (x, x + 1) of an observation x, the target one that twice."""

    def network(scale: Any, memory: Memory, inputs: Any) -> Any:
        x = inputs.observation
        return scale * jnp.concatenate([x, x + 1], axis=2), memory

    steps = steps._replace(extras={"previous_reward": np.zeros((len(steps.reward), 1), np.float32)})
    steps = jax.tree.map(jnp.asarray, steps)
    batch = Batch(steps, StoredState(empty_memory(1, 1), jnp.zeros(1, jnp.int32)), ())  # type: ignore[arg-type]
    return batch_loss(
        jnp.asarray(1.0),
        batch=batch,
        target_params=jnp.asarray(target),
        weight=jnp.ones(1),
        network=network,
        config=CONFIG,
    )[1]


SEEN = [9.0, 9.0, 1.0, 3.0, 5.0]  # two rows of burn-in, x = 1, and then 3 and 5


def test_two_steps_and_a_value_after_the_burn_in():
    # Action 0 at x = 1: q = 1. Rewards 1 + 2/2; x = 5, action 1: the target network says 12, which is h^-1(12) / 4.
    loss = of_rows(rows([9, 9, 1, 2, 9], observation=SEEN))
    np.testing.assert_allclose(loss.td_error, [[h(2 + float(restore(np.float64(12))) / 4) - 1]], rtol=1e-4)


def test_terminated_and_truncated_are_told_apart():
    # The episode ends after the row that is trained on; the next shows its last observation, x = 3.
    dead = of_rows(rows([9, 9, 1, 2, 9], observation=SEEN, terminated=[2]))
    cut = of_rows(rows([9, 9, 1, 2, 9], observation=SEEN, truncated=[2]))
    np.testing.assert_allclose(dead.td_error, [[h(1) - 1]], rtol=1e-5)
    np.testing.assert_allclose(cut.td_error, [[h(1 + float(restore(np.float64(8))) / 2) - 1]], rtol=1e-4)


def test_shapes_are_checked_in_these_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        recurrent_q_loss(**two_sequences(weight=jnp.ones((1, 2))))
