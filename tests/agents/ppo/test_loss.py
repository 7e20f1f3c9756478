"""PPO's advantages and loss by hand."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from agents.networks import over_time
from agents.ppo.agent import experience_of, minibatch_loss
from agents.ppo.config import PpoConfig
from agents.ppo.loss import advantages, normalize, ppo_loss
from agents.ppo.network import Outputs
from agents.sequences import discounts_of, rewards_of, transitions_of
from replay.spec import ReplaySpec
from replay.steps import Steps
from tests.agents.rows import rows

NUMBERS: dict[str, Any] = {"clip": 0.2, "value_clip": 0.2, "value_cost": 0.5, "entropy_cost": 0.01}
VALUES = [1.0, 2.0, 4.0, 8.0]


def advantages_of(steps: Steps, values: list[float], trace_decay: float = 0.5) -> Any:
    """With a discount of 1/2."""
    taken = transitions_of(jax.tree.map(jnp.asarray, steps))
    given = advantages(
        rewards_of(taken, 0.0),
        discounts_of(taken, 0.5),
        taken.valid,
        jnp.asarray(values, jnp.float32)[:, None],
        trace_decay=trace_decay,
    )
    return np.asarray(given)[:, 0]


def test_three_rows_by_hand():
    # Errors 1 + 2/2 - 1 = 1, 2 + 4/2 - 2 = 2, 3 + 8/2 - 4 = 3; each counts 1/4 of the one after it.
    np.testing.assert_allclose(advantages_of(rows([1, 2, 3, 0]), VALUES), [1 + 2.75 / 4, 2 + 3 / 4, 3])
    np.testing.assert_allclose(advantages_of(rows([1, 2, 3, 0]), VALUES, trace_decay=0.0), [1, 2, 3])


def test_a_death_is_worth_nothing_and_a_limit_the_value_of_what_was_seen_last():
    dead = advantages_of(rows([1, 7, 3, 0], terminated=[0]), VALUES)
    cut = advantages_of(rows([1, 7, 3, 0], truncated=[0]), VALUES)
    np.testing.assert_allclose(dead[[0, 2]], [1 - 1, 3])
    np.testing.assert_allclose(cut[[0, 2]], [1 + 2 / 2 - 1, 3])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_leaks_back_over_an_end(end: str):
    ends: dict[str, Any] = {end: [1]}
    base = advantages_of(rows([1, 2, 0, 3, 0], **ends), [1, 2, 4, 5, 6])
    changed = advantages_of(rows([1, 2, 9, 9, 0], **ends), [1, 2, 4, 9, 9])
    np.testing.assert_array_equal(base[:2], changed[:2])
    assert base[3] != changed[3]
    control = advantages_of(rows([1, 2, 9, 9, 0]), [1, 2, 4, 9, 9])
    assert control[0] != advantages_of(rows([1, 2, 0, 3, 0]), [1, 2, 4, 5, 6])[0]


def three_rows(**changes: Any) -> dict[str, Any]:
    """Rows whose probability ratios are 1.5, 0.5 and 1."""

    def row(*values: float) -> Any:
        return jnp.asarray([values])

    return {
        "log_probability": row(math.log(0.6), math.log(0.1), math.log(0.3)),
        "behaviour_log_probability": row(math.log(0.4), math.log(0.2), math.log(0.3)),
        "entropy": row(1.0, 2.0, 3.0),
        "advantage": row(1.0, -1.0, 2.0),
        "value": row(1.0, 2.0, 3.0),
        "old_value": row(0.0, 2.0, 3.0),
        "target": row(2.0, 3.0, 3.0),
        "valid": jnp.ones((1, 3), bool),
        **changes,
    }


def test_a_minibatch_by_hand():
    loss = ppo_loss(**three_rows(), **NUMBERS)
    # Gains min(1.5, 1.2) = 1.2, min(-0.5, -0.8) = -0.8, and 2.
    np.testing.assert_allclose(loss.policy, -(1.2 - 0.8 + 2) / 3, rtol=1e-6)
    # The first value came from 0 and may count as 0.2 at most: error max(1, 1.8^2).
    np.testing.assert_allclose(loss.value, 0.5 * (1.8**2 + 1 + 0) / 3, rtol=1e-6)
    np.testing.assert_allclose(loss.entropy, 2.0)
    np.testing.assert_allclose(loss.total, loss.policy + 0.5 * loss.value - 0.01 * 2, rtol=1e-6)
    np.testing.assert_allclose(loss.clipped, 2 / 3, rtol=1e-6)
    divergence = (0.5 - math.log(1.5)) + (-0.5 + math.log(2))
    np.testing.assert_allclose(loss.divergence, divergence / 3, rtol=1e-5)


def test_without_a_bound_a_value_moves_any_way():
    loss = ppo_loss(**three_rows(), **{**NUMBERS, "value_clip": 0.0})
    np.testing.assert_allclose(loss.value, 0.5 * (1 + 1 + 0) / 3, rtol=1e-6)


def gradient(name: str, **changes: Any) -> Any:
    given = three_rows(**changes)
    return np.asarray(jax.grad(lambda leaf: ppo_loss(**{**given, name: leaf}, **NUMBERS).total)(given[name]))[0]


def test_what_has_gone_far_enough_is_pushed_no_further():
    # Both clipped rows went the way their advantages wanted; the third gains 2 per unit of its ratio.
    np.testing.assert_allclose(gradient("log_probability"), [0, 0, -2 / 3], atol=1e-7)
    # Against their advantages, they are pulled back: d(ratio * advantage) = -1.5 and 0.5.
    against = gradient("log_probability", advantage=jnp.asarray([[-1.0, 1.0, 2.0]]))
    np.testing.assert_allclose(against, [1.5 / 3, -0.5 / 3, -2 / 3], rtol=1e-6)
    # The first value is 1 from where it was, in the direction of its target; the second is 1 below its own.
    np.testing.assert_allclose(gradient("value"), [0, 0.5 * -1 / 3, 0], atol=1e-7)


def test_invalid_rows_count_for_nothing():
    valid = jnp.asarray([[True, True, False]])
    loss = ppo_loss(**three_rows(valid=valid), **NUMBERS)
    np.testing.assert_allclose(loss.policy, -(1.2 - 0.8) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.entropy, 1.5)
    assert gradient("log_probability", valid=valid)[2] == 0
    assert gradient("log_probability")[2] != 0  # control


def test_advantages_are_normalised_over_valid_rows():
    given = normalize(jnp.asarray([1.0, 3.0, 100.0]), jnp.asarray([True, True, False]))
    np.testing.assert_allclose(given[:2], [-1, 1], rtol=1e-6)
    np.testing.assert_array_equal(normalize(jnp.ones(2), jnp.zeros(2, bool)), [1e8, 1e8])  # none valid: none counts


def test_from_rows_to_a_loss():
    config = PpoConfig(
        replay=ReplaySpec(queue=True, trace=2, period=2),
        discount=0.5,
        trace_decay=0.5,
        reward_scale=0.5,
        normalize_advantage=False,
        minibatches=1,
        **NUMBERS,
    )

    def network(weight: Any, observation: Any) -> Outputs:
        return Outputs({"logits": jnp.zeros((len(observation), 2))}, weight * observation[:, 0])

    said = {"log_probability": np.log(np.asarray([[0.5], [0.25], [0.0001]], np.float32))}
    steps = jax.tree.map(jnp.asarray, rows([2, 4, 0], observation=[1, 2, 4], extras=said))
    experience = experience_of(jnp.asarray(1.0), steps, network=network, config=config)
    # Errors 1 + 2/2 - 1 = 1 and 2 + 4/2 - 2 = 2.
    np.testing.assert_allclose(experience.advantage[:, 0], [1 + 2 / 4, 2])
    np.testing.assert_allclose(experience.target[:, 0], [2.5, 4])
    _, loss = minibatch_loss(jnp.asarray(1.0), experience, network=network, config=config)
    # Ratios 1 and 2, the second clipped to 1.2.
    np.testing.assert_allclose(loss.policy, -(1.5 + 1.2 * 2) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.value, 0.5 * (1.5**2 + 2**2) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.entropy, math.log(2), rtol=1e-6)
    assert over_time(lambda x: network(1.0, x), steps.observation).value.shape == (3, 1)


def test_shapes_are_checked_in_these_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        ppo_loss(**three_rows(valid=jnp.ones((2, 3), bool)), **NUMBERS)
