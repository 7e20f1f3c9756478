"""Ape-X's loss by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from agents.apex_dqn.agent import batch_loss
from agents.apex_dqn.config import ApexConfig
from agents.apex_dqn.loss import QLoss, q_loss
from replay.spec import ReplaySpec
from replay.steps import Steps
from tests.agents.rows import rows

CONFIG = ApexConfig(discount=0.5, replay=ReplaySpec(trace=1, n_step=3, period=1, sampler="prioritized"))


def two_sequences(**changes: Any) -> dict[str, Any]:
    """One row of two sequences, with three actions."""
    return {
        "q": jnp.asarray([[[1.0, 2.0, 3.0], [3.0, 0.0, 0.0]]]),
        "action": jnp.asarray([[1, 0]]),
        "valid": jnp.ones((1, 2), bool),
        "reward": jnp.asarray([[1.0, 1.0]]),
        "discount": jnp.asarray([[0.5, 0.0]]),
        "bootstrap_online": jnp.asarray([[[0.0, 5.0, 1.0], [0.0, 5.0, 1.0]]]),
        "bootstrap_target": jnp.asarray([[[10.0, 4.0, 8.0], [10.0, 4.0, 8.0]]]),
        "weight": jnp.asarray([0.5, 1.0]),
        **changes,
    }


def test_two_sequences_by_hand():
    # The online network prefers action 1, which the target network says is worth 4: 1 + 4/2 - 2 = 1. Taking the target
    # network's own best, 10, would make it 4. The other one terminated: 1 - 3 = -2.
    loss = q_loss(**two_sequences())
    np.testing.assert_allclose(loss.td_error, [[1.0, -2.0]])
    np.testing.assert_allclose(loss.total, (0.5 * 0.5 * 1 + 0.5 * 1.0 * 4) / 2)


def test_only_the_taken_action_learns_and_in_proportion_to_the_weight():
    gradient = jax.grad(lambda q: q_loss(**two_sequences(q=q)).total)(two_sequences()["q"])
    # -weight * error / 2 sequences.
    np.testing.assert_allclose(gradient, [[[0, -0.25, 0], [1.0, 0, 0]]])


def test_targets_are_constants():
    for name in ("bootstrap_online", "bootstrap_target"):
        function = lambda value, name=name: q_loss(**two_sequences(**{name: value})).total  # noqa: E731
        np.testing.assert_array_equal(jax.grad(function)(two_sequences()[name]), 0.0)


def test_invalid_rows_count_for_nothing():
    loss = q_loss(**two_sequences(valid=jnp.asarray([[True, False]])))
    np.testing.assert_allclose(loss.td_error, [[1.0, 0.0]])
    np.testing.assert_allclose(loss.total, 0.5 * 0.5 * 1)


def of_rows(steps: Steps, target: float = 2.0, config: ApexConfig = CONFIG) -> QLoss:
    """With networks of two actions: the online one says (x, x + 1) of an observation x, the target one that twice."""

    def network(scale: Any, observation: Any) -> Any:
        return scale * jnp.concatenate([observation, observation + 1], axis=1)

    loss = functools.partial(batch_loss, jnp.asarray(1.0), target_params=jnp.asarray(target), network=network)
    return loss(jax.tree.map(jnp.asarray, steps), weight=jnp.ones(1), config=config)[1]


def test_three_steps_and_a_value():
    # Action 0 at x = 1: q = 1. Rewards 1 + 2/2 + 4/4 = 3; x = 7 in row 3, the target network says 16: 3 + 16/8 - 1 = 4.
    loss = of_rows(rows([1, 2, 4, 9], observation=[1, 3, 5, 7]))
    np.testing.assert_allclose(loss.td_error, [[4.0]])
    np.testing.assert_allclose(loss.total, 8.0)


def test_terminated_and_truncated_are_told_apart():
    # The episode ends after row 1; row 2 shows its last observation, x = 5, which the target network values 12.
    ends: dict[str, Any] = {"observation": [1, 3, 5, 7]}
    np.testing.assert_allclose(of_rows(rows([1, 2, 4, 9], terminated=[1], **ends)).td_error, [[1 + 1 - 1]])
    np.testing.assert_allclose(of_rows(rows([1, 2, 4, 9], truncated=[1], **ends)).td_error, [[1 + 1 + 12 / 4 - 1]])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_leaks_back_over_an_end(end: str):
    ends: dict[str, Any] = {end: [0]}
    base = of_rows(rows([1, 2, 0, 0], observation=[1, 3, 5, 7], **ends))
    changed = of_rows(rows([1, 8, 8, 8], observation=[1, 3, 9, 9], **ends))
    np.testing.assert_array_equal(base.td_error, changed.td_error)
    control = of_rows(rows([1, 8, 8, 8], observation=[1, 3, 9, 9]))
    assert control.td_error != of_rows(rows([1, 2, 0, 0], observation=[1, 3, 5, 7])).td_error


def test_each_row_of_a_longer_trace_has_a_window_of_its_own():
    config = ApexConfig(discount=0.5, replay=ReplaySpec(trace=3, n_step=2, period=3, sampler="prioritized"))
    # Row 0 terminates: 1 - 1 = 0. Row 1 is invalid. Row 2: 4 + 8/2 + 1/4 * 2 (11 + 1) - 5 = 9.
    loss = of_rows(rows([1, 2, 4, 8, 9], observation=[1, 3, 5, 7, 11], terminated=[0]), config=config)
    np.testing.assert_allclose(loss.td_error[:, 0], [0, 0, 9])
    np.testing.assert_allclose(loss.total, 0.5 * 81 / 2)


def test_shapes_are_checked_in_these_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        q_loss(**two_sequences(weight=jnp.ones((1, 2))))
