"""Priorities land at the shard that owns the key; bad ones never leave; a dead shard stalls nobody."""

import jax.numpy as jnp
import numpy as np
import pytest
import reverb

from replay.priorities import PriorityUpdater
from replay.tables import TRAJECTORIES
from tests.replay.shards import eventually, fill, keys_of, make_replay, no_forkserver_left, running  # noqa: F401

PLAN, LAYOUT = make_replay(2, 8, 8, sampler="prioritized", priority_exponent=1.0)


@pytest.fixture
def shards():
    with running(PLAN, LAYOUT) as shards:
        yield shards


def filled(address):
    """Keys of five new items."""
    fill(address, LAYOUT, 5)
    keys = keys_of(address, LAYOUT, 5)
    assert len(keys) == 5
    return keys


def wait_for_sent(updater, count):
    eventually(lambda: updater.counts.sent == count, what="the update")


def priorities_of(address):
    """By key, as samples show them."""
    found = {}
    client = reverb.Client(address)
    for sample in client.sample(TRAJECTORIES, 400, emit_timesteps=False):
        found[sample.info.key] = sample.info.priority
    return found


def test_ten_of_ten_land_at_their_owners(shards):
    keys = [filled(shard.address) for shard in shards]
    updater = PriorityUpdater([shard.address for shard in shards])
    shard = np.array([0, 1] * 5, np.int32)
    key = np.array([keys[s][i // 2] for i, s in enumerate(shard)], np.uint64)
    updater.update(shard, key, jnp.arange(10, 20, dtype=jnp.float32))
    updater.close(timeout=10)
    assert (updater.counts.sent, updater.counts.dropped, updater.counts.invalid) == (10, 0, 0)
    want = [{int(k): 10.0 + i for i, k in enumerate(key) if shard[i] == s} for s in (0, 1)]
    assert [priorities_of(s.address) for s in shards] == want


def test_keys_at_the_wrong_shard_change_nothing(shards):
    """The control: routing is what makes them land."""
    keys = [filled(shard.address) for shard in shards]
    updater = PriorityUpdater([shard.address for shard in shards])
    updater.update(np.ones(5, np.int32), np.array(keys[0], np.uint64), np.full(5, 50.0))
    updater.close(timeout=10)
    assert set(priorities_of(shards[0].address).values()) == {1.0}


def test_bad_priorities_never_leave_and_good_ones_beside_them_land(shards, caplog):
    keys = filled(shards[0].address)
    updater = PriorityUpdater([shard.address for shard in shards])
    updater.update(np.zeros(5, np.int32), np.array(keys, np.uint64), np.array([2.0, np.nan, np.inf, -1.0, 3.0]))
    updater.close(timeout=10)
    assert (updater.counts.sent, updater.counts.invalid) == (2, 3)
    assert f"{keys[1]}: nan" in caplog.text
    assert priorities_of(shards[0].address) == dict(zip(keys, [2.0, 1.0, 1.0, 1.0, 3.0], strict=True))


def test_a_dead_shard_stalls_nobody(shards):
    keys = [filled(shard.address) for shard in shards]
    updater = PriorityUpdater([shard.address for shard in shards], capacity=3)
    shards[0].kill()
    for value in range(20):
        for index in (0, 1):
            updater.update(np.full(5, index, np.int32), np.array(keys[index], np.uint64), np.full(5, 2.0 + value))
        wait_for_sent(updater, 5 * (value + 1))
    assert set(priorities_of(shards[1].address).values()) == {21.0}
    eventually(lambda: updater.counts.dropped >= 5 * (20 - 3 - 1), what="the oldest being dropped")
    updater.close(timeout=2)
    assert updater.counts.dropped == 100
