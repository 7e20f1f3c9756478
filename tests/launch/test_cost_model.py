"""Rates and loads by hand, and what bounds them."""

import dataclasses
import math

import pytest

from configs.overrides import apply_overrides
from configs.presets import preset
from launch.assembly import assemble
from launch.cost_model import (
    ActorCosts,
    Costs,
    Rates,
    Setting,
    at,
    completed,
    loads,
    on_one_machine,
    on_own_cores,
    setting_of,
)

COSTS = Costs(
    actors={"actor": ActorCosts(cpu=0.001, rate=1000.0, items=0.1)},
    learner_cpu=0.01,
    learner_rate=100.0,
    insert_cpu=1e-4,
    sample_cpu=2e-4,
    insert_bytes=10_000.0,
    sample_bytes=20_000.0,
    weights_bytes=1e6,
    monitor_cpu=0.0,
)
# Ten items an update: 100 of the learner's steps/s ask for 1,000 items/s, and each actor writes 100.
SETTING = Setting(
    actors={"actor": 2},
    shards=2,
    learners=1,
    evaluators=1,
    batch_size=10,
    publish_period=10,
    fetch_period=0.05,
    samples_per_insert=1.0,
)


def with_actors(count: int) -> Setting:
    return dataclasses.replace(SETTING, actors={"actor": count})


def test_the_slower_of_actors_and_learner_bounds_the_other():
    few, many = on_own_cores(with_actors(2), COSTS, math.inf), on_own_cores(with_actors(40), COSTS, math.inf)
    assert few.bottleneck == "the actors"
    assert few.rates == Rates(environment_steps=2000.0, learner_steps=20.0)
    assert many.bottleneck == "the learner"
    assert many.rates.learner_steps == pytest.approx(100.0)
    assert many.rates.environment_steps == pytest.approx(10_000.0)


def test_those_that_run_free_do_not_bound_each_other():
    free = dataclasses.replace(SETTING, samples_per_insert=0.0)
    assert on_own_cores(free, COSTS, math.inf).rates == Rates(environment_steps=2000.0, learner_steps=100.0)


def test_loads_add_up():
    found = loads(SETTING, COSTS, Rates(environment_steps=2000.0, learner_steps=20.0))
    # 200 items/s in and out, 2 publications/s of 1 MB, fetched by two actors and the evaluator.
    assert found["replay"].cores == pytest.approx((200 * 1e-4 + 200 * 2e-4) / 2)
    assert found["replay"].received == pytest.approx(100 * 10_000 + 2e6)
    assert found["replay"].sent == pytest.approx(100 * 20_000 + 1.5 * 2e6)
    assert found["learner"].cores == pytest.approx(0.2)
    assert found["learner"].received == pytest.approx(200 * 20_000)
    assert found["learner"].sent == pytest.approx(2 * 2e6)
    assert found["actor"].cores == pytest.approx(1.0)
    assert found["actor"].received == pytest.approx(2e6)
    assert found["actor"].sent == pytest.approx(100 * 10_000)
    received, sent = (sum(getattr(load, way) * count for load, count in (
        (found["replay"], 2), (found["learner"], 1), (found["actor"], 2)
    )) for way in ("received", "sent"))  # fmt: skip
    assert sent - received == pytest.approx(2e6)  # the evaluator's


def test_several_learners_also_sum_gradients():
    found = loads(dataclasses.replace(SETTING, learners=2), COSTS, Rates(environment_steps=2000.0, learner_steps=20.0))
    assert found["learner"].received == pytest.approx(100 * 20_000 + 1e6 * 20)


def test_shards_and_network_are_limits_too():
    slow = dataclasses.replace(COSTS, sample_cpu=0.01)
    bounded = on_own_cores(with_actors(40), slow, math.inf)
    assert bounded.bottleneck == "the shards' cores"
    assert bounded.loads["replay"].cores == pytest.approx(1.0)
    assert bounded.shards == math.ceil(1000 * (0.01 + 1e-4))
    thin = on_own_cores(with_actors(40), COSTS, 1e7)
    assert thin.bottleneck == "the network of each replay"
    assert max(thin.loads["replay"].sent, thin.loads["replay"].received) == pytest.approx(1e7)


def test_more_shards_do_not_help_where_weights_alone_fill_their_links():
    assert at(SETTING, COSTS, Rates(environment_steps=2000.0, learner_steps=20.0), 1.9e6).shards is None


def test_wanted_rates_say_what_is_asked_too_much_of():
    calm = at(SETTING, COSTS, Rates(environment_steps=2000.0, learner_steps=20.0), math.inf)
    assert calm.bottleneck == "none of shards and network"
    much = at(SETTING, COSTS, Rates(environment_steps=1e6, learner_steps=1e4), math.inf)
    assert much.bottleneck == "the shards' cores"
    assert much.shards == math.ceil(1e5 * 3e-4)


def test_one_wanted_rate_is_enough_where_replay_ties_them():
    assert completed(SETTING, COSTS, 2000.0, 0.0) == Rates(environment_steps=2000.0, learner_steps=20.0)
    assert completed(SETTING, COSTS, 0.0, 20.0).environment_steps == pytest.approx(2000.0)
    free = dataclasses.replace(SETTING, samples_per_insert=0.0)
    assert completed(free, COSTS, 5000.0, 0.0) == Rates(environment_steps=5000.0, learner_steps=100.0)


@pytest.mark.parametrize("samples_per_insert", [0.0, 1.0])
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_one_machine_is_full_or_somebody_is_slow(samples_per_insert, cores):
    setting = dataclasses.replace(SETTING, samples_per_insert=samples_per_insert, evaluators=0)
    found = on_one_machine(setting, COSTS, cores)
    counts = {"replay": 2, "learner": 1, "actor": 2}
    used = sum(counts[role] * load.cores for role, load in found.loads.items())
    assert used <= cores * 1.001
    if cores == 64:
        assert found.rates == on_own_cores(setting, COSTS, math.inf).rates
    else:
        assert used == pytest.approx(cores, rel=0.01)
        assert found.bottleneck == f"the {cores} cores of this machine"


def test_a_setting_follows_the_experiment():
    experiment = apply_overrides(preset("impala_pong"), ["topology.actors=3", "topology.accelerated_actors=1"])
    setting = setting_of(experiment, assemble(experiment).plan)
    assert setting.actors == {"actor": 3, "accelerated_actor": 1}
    assert setting.samples_per_insert == 1.0  # a queue's
