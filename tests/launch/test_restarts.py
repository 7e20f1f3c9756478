"""How often a failed role is started again."""

from typing import get_args

import pytest

from configs.experiment import RoleName
from launch.restarts import NEVER, RestartPolicy, Restarts
from launch.roles import FUNCTIONS


def test_pauses_double_up_to_a_bound_and_it_is_given_up() -> None:
    restarts = Restarts(RestartPolicy(most=7, window=100.0))
    assert [restarts.failed("actor-0", now) for now in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, None]
    assert restarts.counts == {"actor-0": 7}


def test_failures_long_ago_are_forgotten_and_roles_are_counted_apart() -> None:
    restarts = Restarts(RestartPolicy(most=1, window=10.0))
    assert restarts.failed("actor-0", 0.0) == 0.5
    assert restarts.failed("actor-1", 1.0) == 0.5
    assert restarts.failed("actor-0", 10.0) == 0.5  # the first is 10 s old
    assert restarts.failed("actor-1", 10.9) is None  # control: 9.9 s are not enough


def test_without_a_policy_the_first_failure_is_the_last() -> None:
    assert Restarts(NEVER).failed("learner-0", 5.0) is None


def test_a_final_roles_first_failure_is_its_last() -> None:
    restarts = Restarts(RestartPolicy(most=5, final=("learner", "accelerated_actor")))
    assert restarts.failed("learner", 0.0) is None  # as several processes of one learner are named
    assert restarts.failed("accelerated_actor-0", 0.0) is None
    assert restarts.failed("actor-0", 0.0) == 0.5  # control


def test_every_role_that_stays_can_be_named() -> None:
    assert {*get_args(RoleName), "preflight"} == set(FUNCTIONS)


@pytest.mark.parametrize("most", [1, 3])
def test_as_many_as_allowed(most: int) -> None:
    restarts = Restarts(RestartPolicy(most=most))
    granted = [restarts.failed("replay-0", float(now)) is not None for now in range(most + 1)]
    assert granted == [True] * most + [False]
