"""The V-trace loss by hand."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from agents.impala.agent import batch_loss
from agents.impala.config import ImpalaConfig
from agents.impala.loss import ImpalaLoss, impala_loss
from agents.networks import PolicyValue
from agents.sequences import discounts_of
from replay.steps import Steps
from tests.agents.rows import rows

LOG2 = math.log(2.0)
COSTS: dict[str, Any] = {"clip_rho": 1.0, "baseline_cost": 0.5, "entropy_cost": 0.01}
CONFIG = ImpalaConfig(discount=0.5, **COSTS)


def two_rows(**changes: Any) -> dict[str, Any]:
    """Two rows of one sequence: pi(a) = 1/4 and 1/2, mu(a) = 1/2 and 1/4, so the ratios are 1/2 and 2."""
    quarter, half = [math.log(0.25), math.log(0.75)], [0.0, 0.0]
    return {
        "logits": jnp.asarray([[quarter], [half]]),
        "values": jnp.asarray([[1.0], [2.0], [4.0]]),
        "behaviour_logits": jnp.asarray([[half], [quarter]]),
        "action": jnp.zeros((2, 1), jnp.int32),
        "reward": jnp.asarray([[1.0], [2.0]]),
        "discount": jnp.full((2, 1), 0.5),
        "valid": jnp.ones((2, 1), bool),
        **changes,
    }


def test_two_rows_by_hand():
    # Row 1: rho = min(1, 2) = 1; error = 1 (2 + 4/2 - 2) = 2, target 2 + 2 = 4.
    # Row 0: rho = c = 1/2; error = 1/2 (1 + 2/2 - 1) + 1/2 * 1/2 * 2 = 1, target 2.
    # Advantages: 1/2 (1 + 4/2 - 1) = 1 and 1 (2 + 4/2 - 2) = 2; -log pi(a) = 2 log 2 and log 2.
    loss = impala_loss(**two_rows(), **COSTS)
    entropy = (0.25 * math.log(4) + 0.75 * math.log(4 / 3) + LOG2) / 2
    np.testing.assert_allclose(loss.policy, (2 * LOG2 * 1 + LOG2 * 2) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.baseline, (0.5 * 1**2 + 0.5 * 2**2) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.entropy, entropy, rtol=1e-6)
    np.testing.assert_allclose(loss.clipped, 0.5)  # one of two ratios is above 1
    np.testing.assert_allclose(loss.total, loss.policy + 0.5 * loss.baseline - 0.01 * entropy, rtol=1e-6)


def test_a_higher_bound_lets_more_of_the_ratio_through_and_leaves_c_at_1():
    # rho-bar = 2. Row 1: rho = 2: error = 2 (2 + 4/2 - 2) = 4, target 6. Row 0: 1/2 (1) + 1/2 * 1/2 * 4 = 1.5.
    # Advantages: 1/2 (1 + 6/2 - 1) = 1.5 and 2 (2 + 2 - 2) = 4.
    loss = impala_loss(**two_rows(), **{**COSTS, "clip_rho": 2.0})
    np.testing.assert_allclose(loss.baseline, (0.5 * 1.5**2 + 0.5 * 4**2) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.policy, (2 * LOG2 * 1.5 + LOG2 * 4) / 2, rtol=1e-6)
    # With both ratios 2 and c = 1 the error of row 0 is 2 (1) + 1/2 * 1 * 4 = 4; c = 2 would make it 6.
    half, quarter = [0.0, 0.0], [math.log(0.25), math.log(0.75)]
    both = two_rows(logits=jnp.asarray([[half], [half]]), behaviour_logits=jnp.asarray([[quarter], [quarter]]))
    np.testing.assert_allclose(impala_loss(**both, **{**COSTS, "clip_rho": 2.0}).baseline, (8 + 8) / 2, rtol=1e-6)


def test_values_learn_from_their_errors_and_targets_are_constants():
    gradient = jax.grad(lambda values: impala_loss(**two_rows(values=values), **COSTS).total)(two_rows()["values"])
    # 0.5 * -error / 2 rows; nothing for the value that is bootstrapped from.
    np.testing.assert_allclose(gradient[:, 0], [-0.25, -0.5, 0.0], rtol=1e-6)


def test_the_policy_gradient_is_that_of_the_advantages():
    costs = {**COSTS, "entropy_cost": 0.0}
    gradient = jax.grad(lambda logits: impala_loss(**two_rows(logits=logits), **costs).total)(two_rows()["logits"])
    # -(1[a] - pi) advantage / 2 rows: row 0 -(1 - 1/4) 1 / 2, row 1 -(1 - 1/2) 2 / 2.
    np.testing.assert_allclose(gradient[:, 0], [[-0.375, 0.375], [-0.5, 0.5]], rtol=1e-5)


def on_policy(steps: Steps) -> ImpalaLoss:
    """With a uniform policy, that acted too, and an observation that is its own value."""
    steps = steps._replace(extras={"logits": np.zeros((*steps.reward.shape, 2), np.float32)})
    network = lambda params, observation: PolicyValue(params * jnp.ones((len(observation), 2)), observation[:, 0])  # noqa: E731
    return batch_loss(jnp.ones(()), jax.tree.map(jnp.asarray, steps), network=network, config=CONFIG)[1]


def test_terminated_and_truncated_are_told_apart():
    # Errors: row 0 (truncated) 1 + 2/2 - 1 = 1, (terminated) 1 - 1 = 0; row 2 is valid: 3 + 8/2 - 4 = 3.
    truncated = on_policy(rows([1, 5, 3, 9], observation=[1, 2, 4, 8], truncated=[0]))
    terminated = on_policy(rows([1, 5, 3, 9], observation=[1, 2, 4, 8], terminated=[0]))
    np.testing.assert_allclose(truncated.baseline, (0.5 * 1 + 0.5 * 9) / 2, rtol=1e-6)
    np.testing.assert_allclose(terminated.baseline, (0.5 * 0 + 0.5 * 9) / 2, rtol=1e-6)
    # -log pi(a) = log 2 in every row, the advantages are the errors.
    np.testing.assert_allclose(truncated.policy, LOG2 * (1 + 3) / 2, rtol=1e-6)
    np.testing.assert_allclose(terminated.policy, LOG2 * (0 + 3) / 2, rtol=1e-6)


def test_an_end_in_the_last_row_needs_only_the_observation_behind_it():
    # Row 1 ends the episode and row 2 is there to bootstrap from: errors 1 + 2/2 - 1 + 1/2 (2 + 4/2 - 2) = 2 and 2.
    truncated = on_policy(rows([1, 2, 9], observation=[1, 2, 4], truncated=[1]))
    np.testing.assert_allclose(truncated.baseline, (0.5 * 4 + 0.5 * 4) / 2, rtol=1e-6)
    # Terminated: 1 + 1 - 1 + 1/2 * 0 = 1 and 2 - 2 = 0.
    terminated = on_policy(rows([1, 2, 9], observation=[1, 2, 4], terminated=[1]))
    np.testing.assert_allclose(terminated.baseline, (0.5 * 1 + 0.5 * 0) / 2, rtol=1e-6)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_leaks_back_over_an_end(end: str):
    ends: dict[str, Any] = {end: [1]}

    def gradient(reward: list[float], observation: list[float]) -> Any:
        steps = jax.tree.map(jnp.asarray, rows(reward, observation=observation, **ends))
        logits = jnp.zeros((5, 1, 2))

        def total(logits: Any) -> Any:
            values, discount = steps.observation[..., 0], discounts_of(steps, 0.5)
            return impala_loss(
                logits, values, logits * 0, steps.action[:-1], steps.reward[:-1], discount[:-1], steps.valid[:-1],
                **{**COSTS, "entropy_cost": 0.0},
            ).total  # fmt: skip

        return jax.grad(total)(logits)

    # Rows 0 and 1 are one episode, row 2 shows its end, rows 3 and 4 are the next one.
    base, changed = gradient([1, 1, 0, 1, 1, 0], [1, 2, 3, 4, 5, 6]), gradient([1, 1, 0, 7, 7, 0], [1, 2, 3, 9, 9, 9])
    np.testing.assert_array_equal(base[:3], changed[:3])
    np.testing.assert_array_equal(base[2], 0.0)
    assert not np.allclose(base[3:], changed[3:])  # control: the change is seen at all


def test_what_stands_in_invalid_rows_says_nothing():
    base = on_policy(rows([1, 0, 3, 0], observation=[1, 2, 4, 8], truncated=[0]))
    other = rows([1, 50, 3, 70], observation=[1, 2, 4, 8], action=[0, 1, 0, 1], truncated=[0])
    for one, two in zip(base, on_policy(other), strict=True):
        np.testing.assert_array_equal(one, two)
    control = on_policy(rows([1, 0, 4, 0], observation=[1, 2, 4, 8], truncated=[0]))
    assert control.total != base.total


def test_rewards_are_clipped_as_the_config_says():
    steps = rows([5, 2, 0], observation=[1, 2, 4])
    steps = steps._replace(extras={"logits": np.zeros((3, 1, 2), np.float32)})
    network = lambda params, observation: PolicyValue(params * jnp.ones((len(observation), 2)), observation[:, 0])  # noqa: E731
    loss = functools.partial(batch_loss, jnp.ones(()), jax.tree.map(jnp.asarray, steps), network=network)
    # Clipped to 1: errors 1 + 1 - 1 + 1/2 (1 + 2 - 2) = 1.5 and 1. As they are: 5 + 1 - 1 + 1/2 * 2 = 6 and 2.
    clipped = loss(config=ImpalaConfig(discount=0.5, reward_clip=1.0, **COSTS))[1]
    np.testing.assert_allclose(clipped.baseline, (0.5 * 1.5**2 + 0.5 * 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss(config=CONFIG)[1].baseline, (0.5 * 36 + 0.5 * 4) / 2, rtol=1e-6)


def test_shapes_are_checked_in_these_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        impala_loss(**two_rows(values=jnp.ones((2, 1))), **COSTS)
