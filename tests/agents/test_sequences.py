from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from agents.sequences import masked_mean, n_step_windows, rewards_of, take_rows, transitions_of
from tests.agents.rows import rows

BOTH = pytest.mark.parametrize("xp", [jnp, np])


def windows(steps, xp=jnp, *, count=1, n_step=3, discount=0.5, clip=0.0):
    found = n_step_windows(steps, rows=count, n_step=n_step, discount=discount, reward_clip=clip, xp=xp)
    return [np.asarray(leaf)[:, 0].tolist() for leaf in found]


@BOTH
def test_a_window_sums_discounted_rewards(xp):
    reward, discount, bootstrap = windows(rows([1, 2, 4, 9]), xp)
    assert reward == [1 + 0.5 * 2 + 0.25 * 4]
    assert discount == [0.125]
    assert bootstrap == [3]


@BOTH
def test_a_termination_ends_the_window_and_leaves_no_value(xp):
    # Row 1 ends the task; row 2 is the episode's last observation; row 3 begins the next episode.
    reward, discount, _ = windows(rows([1, 2, 4, 9], terminated=[1]), xp)
    assert reward == [1 + 0.5 * 2]
    assert discount == [0]


@BOTH
def test_a_limit_ends_the_window_at_the_last_observation(xp):
    reward, discount, bootstrap = windows(rows([1, 2, 4, 9], truncated=[1]), xp)
    assert reward == [1 + 0.5 * 2]
    assert discount == [0.25]
    assert bootstrap == [2]


@BOTH
def test_padding_ends_the_window_where_no_flag_does(xp):
    reward, discount, bootstrap = windows(rows([1, 2, 4, 9], padding=[2, 3]), xp)
    assert (reward, discount, bootstrap) == ([2], [0.25], [2])


@BOTH
def test_a_row_that_is_not_valid_has_an_empty_window(xp):
    reward, _, bootstrap = windows(rows([5, 1, 2, 4], padding=[0]), xp)
    assert (reward, bootstrap) == ([0], [0])


@BOTH
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_nothing_leaks_back_over_an_episodes_end(xp, kind):
    def sums(late):
        end: Any = {kind: [2]}
        return windows(rows([0, 0, 0, 0, late, 0, 0], **end), xp, count=5, n_step=2)[0]

    base, changed = sums(0), sums(7)
    assert base[:4] == changed[:4] == [0] * 4
    assert changed[4] == 7  # control: the change is seen at all


@BOTH
def test_rewards_are_clipped_on_request(xp):
    steps = rows([-3, 0.5, 4, 9])
    assert windows(steps, xp, clip=1.0)[0] == [-1 + 0.5 * 0.5 + 0.25 * 1]
    assert windows(steps, xp, clip=0.0)[0] == [-3 + 0.5 * 0.5 + 0.25 * 4]


def test_numpy_windows_stay_in_32_bits():
    found = n_step_windows(rows([1, 2, 4, 9]), rows=1, n_step=3, discount=0.99, reward_clip=1.0, xp=np)
    assert [leaf.dtype.name for leaf in found] == ["float32", "float32", "int32"]


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_windows_give_rlax_returns(n_step):
    rng = np.random.default_rng(0)
    length, count = 30, 30 - n_step
    ends = rng.random(length) < 0.3
    ends[0] = ends[-1] = False
    ends &= ~np.roll(ends, 1)  # a row after an end is not valid, so it ends nothing
    by_limit = ends & (rng.random(length) < 0.5)
    invalid = np.flatnonzero(ends) + 1
    reward, value = rng.normal(size=length).astype(np.float32), rng.normal(size=length).astype(np.float32)
    by_death = np.flatnonzero(ends & ~by_limit).tolist()
    steps = rows(reward.tolist(), terminated=by_death, truncated=np.flatnonzero(by_limit).tolist())
    found = n_step_windows(steps, rows=count, n_step=n_step, discount=0.9, reward_clip=0.0)
    ours = found.reward + found.discount * take_rows(value[:, None], found.bootstrap)
    theirs = rlax.n_step_bootstrapped_returns(
        jnp.asarray(reward[:-1]),
        jnp.asarray(0.9 * ~(ends & ~by_limit)[:-1], jnp.float32),
        jnp.asarray(value[1:]),
        n_step,
        jnp.asarray(~by_limit[:-1], jnp.float32),  # lambda 0 takes the next value at once
    )[:count]
    valid = np.setdiff1d(np.arange(count), invalid)
    assert by_limit.sum() > 1
    assert len(valid) < count
    np.testing.assert_allclose(ours[valid, 0], theirs[valid], rtol=1e-5)


def test_take_rows_takes_each_sequences_own():
    values = {"x": jnp.arange(12.0).reshape(3, 2, 2)}
    taken = take_rows(values, jnp.asarray([[2, 0]]))
    np.testing.assert_array_equal(taken["x"], [[[8, 9], [2, 3]]])


def test_transitions_leave_out_the_last_row():
    assert transitions_of(rows([1, 2, 3])).reward[:, 0].tolist() == [1, 2]


def test_the_mean_is_over_what_counts():
    values = jnp.asarray([[1.0, jnp.nan], [3.0, 100.0]])
    mask = jnp.asarray([[True, False], [True, False]])
    assert masked_mean(values, mask) == 2
    assert masked_mean(values, jnp.zeros_like(mask)) == 0
    gradient = jax.grad(lambda x: masked_mean(x * x, mask))(jnp.asarray([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(gradient, [[1, 0], [3, 0]])


def test_rewards_of_rows_that_are_not_valid_are_zero():
    assert rewards_of(rows([1, 2, 3], padding=[1]), 0.0)[:, 0].tolist() == [1, 0, 3]
