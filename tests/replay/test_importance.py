"""Weights across shards are exact, whatever share each answered."""

import numpy as np
import pytest
import scipy.stats

from replay.importance import HostSamples, ShardMasses
from tests.replay.shards import fill, make_replay, no_forkserver_left, running  # noqa: F401


def samples(shard, probability, priority, size):
    count = len(shard)
    return HostSamples(
        shard=np.asarray(shard, np.int32),
        key=np.arange(count, dtype=np.uint64),
        probability=np.asarray(probability, np.float64),
        table_size=np.asarray(size, np.int64),
        priority=np.asarray(priority, np.float64),
        times_sampled=np.ones(count, np.int32),
    )


def test_numbers_by_hand():
    """Shard 0 holds priorities 1 and 4, shard 1 holds 9; alpha 0.5: masses 1 + 2 = 3 and 3; 3 of 4 samples from 0."""
    masses = ShardMasses(2, exponent=0.5, prioritized=True, horizon=0)
    info = masses.weigh(samples([0, 0, 0, 1], [1 / 3, 2 / 3, 2 / 3, 1.0], [1.0, 4.0, 4.0, 9.0], [2, 2, 2, 1]))
    np.testing.assert_allclose(masses.masses, [3, 3])
    np.testing.assert_allclose(info.probability, [1 / 6, 2 / 6, 2 / 6, 3 / 6], rtol=1e-6)
    np.testing.assert_allclose(info.correction, [0.5 / 0.75] * 3 + [0.5 / 0.25], rtol=1e-6)
    np.testing.assert_array_equal(info.items, [3] * 4)


def test_uniform_items_have_mass_one():
    """Reverb's probability and priority don't matter: 3 + 1 items, one sample of each shard."""
    masses = ShardMasses(2, exponent=0.6, prioritized=False, horizon=0)
    info = masses.weigh(samples([0, 1], [1.0, 1.0], [7.0, 0.0], [3, 1]))
    np.testing.assert_allclose(info.probability, [1 / 4, 1 / 4])
    np.testing.assert_allclose(info.correction, [0.75 / 0.5, 0.25 / 0.5])


def test_a_queue_needs_no_correction():
    masses = ShardMasses(2, exponent=0.6, prioritized=False, each_once=True)
    np.testing.assert_array_equal(masses.weigh(samples([0, 0, 1], [1] * 3, [1] * 3, [9, 8, 1])).correction, [1, 1, 1])


def test_a_shard_that_is_gone_drops_out_of_the_total():
    masses = ShardMasses(2, exponent=1.0, prioritized=False, horizon=2, forget=5)
    masses.weigh(samples([0, 1], [1, 1], [1, 1], [10, 30]))
    only = samples([0, 0], [1, 1], [1, 1], [10, 10])
    for _ in range(4):
        info = masses.weigh(only)
    assert info.items[0] == 40
    info = masses.weigh(only)
    assert info.items[0] == 10
    np.testing.assert_allclose(info.probability, 1 / 10)
    np.testing.assert_allclose(info.correction, 1.0)


def test_zero_priorities_stay_finite():
    """Reverb draws them only where all are zero."""
    info = ShardMasses(2, exponent=0.6, prioritized=True).weigh(
        samples([0, 0, 1], [0.5, 0.5, 1.0], [0.0, 0.0, 0.0], [2, 2, 1])
    )
    np.testing.assert_allclose(info.probability, 1 / 3, rtol=1e-6)
    assert np.isfinite(info.correction).all()


@pytest.mark.parametrize("share", [0.5, 0.75, 0.2])
def test_every_item_counts_equally_whatever_share_its_shard_answered(share):
    """100 and 10 items of equal priority; the weight of each item, summed over draws, is the same for all 110."""
    rng = np.random.default_rng(0)
    masses = ShardMasses(2, exponent=0.6, prioritized=True)
    sizes = np.array([100, 10])
    weights, plain = np.zeros(110), np.zeros(110)
    for batch in range(4_200):
        shard = (rng.random(64) >= share).astype(np.int32)
        item = rng.integers(0, sizes[shard])
        info = masses.weigh(samples(shard, 1 / sizes[shard], np.full(64, 2.0), sizes[shard]))
        np.testing.assert_allclose(info.probability, 1 / 110, rtol=1e-5)
        if batch >= 200:
            np.add.at(weights, item + 100 * shard, info.correction)
            np.add.at(plain, item + 100 * shard, 1)
    big, small = weights[:100].sum() / weights.sum(), weights[100:].sum() / weights.sum()
    np.testing.assert_allclose([big, small], [100 / 110, 10 / 110], rtol=0.02)
    weights /= weights.mean()
    spread = 6 / np.sqrt(plain.min())  # six standard deviations of a count
    assert np.abs(weights - 1).max() < spread
    assert np.abs(plain / plain.mean() - 1).max() > 2 * spread  # the control: uncorrected, they are far from equal


@pytest.fixture(scope="module")
def filled():
    """Two shards of 20 and 5 items; item i of a shard has priority i + 1."""
    plan, layout = make_replay(2, 64, 64, sampler="prioritized", priority_exponent=0.7)
    with running(plan, layout) as shards:
        for shard, count in zip(shards, (20, 5), strict=True):
            fill(shard.address, layout, count, lambda index: index + 1.0)
        yield plan, layout, shards


def test_real_shards_tell_masses_and_frequencies_follow_them(filled):
    from replay.dataset import ReplayReader
    from tests.replay.shards import actions, drain

    plan, layout, shards = filled
    reader = ReplayReader([shard.address for shard in shards], layout, plan, 64, samples_in_flight=64, prefetch=2)
    try:
        batches = drain(reader, 350)
    finally:
        reader.close()
    both = next(index for index in range(350) if {0, 1} <= set(np.concatenate([b.shard for b in batches[: index + 1]])))
    assert both < 50
    batches = batches[both:]  # a shard's mass counts from its first answer on
    shard = np.concatenate([batch.shard for batch in batches])
    item = np.concatenate([actions(layout, batch) for batch in batches])
    correction = np.concatenate([np.asarray(batch.info.correction) for batch in batches])
    probability = np.concatenate([np.asarray(batch.info.probability) for batch in batches])
    priorities = [np.arange(1.0, 21), np.arange(1.0, 6)]
    total = sum((p**0.7).sum() for p in priorities)
    for index, p in enumerate(priorities):
        mine = shard == index
        np.testing.assert_allclose(probability[mine], (p**0.7 / total)[item[mine]], rtol=1e-4)
        counts = np.bincount(item[mine], minlength=len(p))
        for alpha, follows in ((0.7, True), (0.3, False)):
            expected = p**alpha / (p**alpha).sum() * counts.sum()
            assert (scipy.stats.chisquare(counts, expected).pvalue > 1e-4) == follows, (index, alpha, counts)
    late = slice(100 * 64, None)  # once the shares are known
    weight = [correction[late][shard[late] == index].sum() / correction[late].sum() for index in (0, 1)]
    want = [(p**0.7).sum() / total for p in priorities]
    np.testing.assert_allclose(weight, want, atol=0.03)
    assert abs(np.mean(shard[late] == 0) - want[0]) > 0.1  # the control: shares alone are nothing like the masses
