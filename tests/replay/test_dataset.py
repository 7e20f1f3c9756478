"""The reader against real servers: empty, not up yet, killed and restarted."""

import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replay.dataset import ReplayReader
from replay.server import shard_info
from tests.replay.shards import (
    ShardProcess,
    actions,
    drain,
    eventually,
    fill,
    keys_of,
    make_replay,
    no_forkserver_left,  # noqa: F401
    running,
)


def make_reader(shards, plan, layout, batch_size, in_flight=16, **options):
    addresses = [shard.address for shard in shards]
    return ReplayReader(addresses, layout, plan, batch_size, samples_in_flight=in_flight, prefetch=2, **options)


def shards_in(batches):
    return set(np.concatenate([batch.shard for batch in batches]).tolist())


@pytest.fixture(scope="module")
def two():
    """Two filled shards; items 0..29 and 100..119."""
    plan, layout = make_replay(2, 8)
    with running(plan, layout) as shards:
        fill(shards[0].address, layout, 30)
        fill(shards[1].address, layout, 20, start=100)
        yield plan, layout, shards


def test_samples_say_where_they_came_from(two):
    plan, layout, shards = two
    keys = [keys_of(shards[0].address, layout, 30), keys_of(shards[1].address, layout, 20)]
    reader = make_reader(shards, plan, layout, 8)
    while shards_in(drain(reader, 8)) != {0, 1}:  # they are connected to side by side: one may be seconds ahead
        pass
    batches = drain(reader, 40)
    reader.close()
    assert shards_in(batches) == {0, 1}
    for batch in batches:
        item = actions(layout, batch)
        np.testing.assert_array_equal(batch.shard, item >= 100)
        want = [keys[shard][number % 100] for shard, number in zip(batch.shard, item, strict=True)]
        np.testing.assert_array_equal(batch.key, np.array(want, np.uint64))
        np.testing.assert_allclose(batch.samples.probability, np.where(batch.shard == 0, 1 / 30, 1 / 20))
        np.testing.assert_array_equal(batch.samples.table_size, np.where(batch.shard == 0, 30, 20))
        np.testing.assert_array_equal(batch.info.items, [50] * 8)
        np.testing.assert_allclose(batch.info.probability, 1 / 50, rtol=1e-6)
        assert batch.version_mean == 7.0
    assert reader.stalled == ()


def test_batches_lie_on_the_devices_they_are_asked_to(two):
    plan, layout, shards = two
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), PartitionSpec("data"))
    reader = make_reader(shards, plan, layout, 8, sharding=sharding)
    batch = drain(reader, 1)[0]
    reader.close()
    for leaf in jax.tree.leaves((dict(batch.arrays), batch.info)):
        assert leaf.sharding == sharding
        assert leaf.addressable_shards[0].data.shape[0] == 2


def test_another_layout_is_an_error_and_not_a_wait(two):
    plan, _, shards = two
    _, longer = make_replay(2, 8, n_step=3)
    reader = make_reader(shards, plan, longer, 8)
    with pytest.raises(RuntimeError, match=shards[0].address):
        drain(reader, 1)
    reader.close()


def test_an_empty_shard_stalls_nothing_and_joins_when_it_has_items():
    plan, layout = make_replay(2, 8)
    with running(plan, layout) as shards:
        fill(shards[0].address, layout, 10)
        reader = make_reader(shards, plan, layout, 8)
        assert shards_in(drain(reader, 50)) == {0}
        eventually(lambda: drain(reader, 5) and reader.stalled == (shards[1].address,), what="the report")
        fill(shards[1].address, layout, 10)
        eventually(lambda: 1 in shards_in(drain(reader, 5)), what="the shard's joining")
        eventually(lambda: drain(reader, 5) and reader.stalled == (), what="the end of the report")
        reader.close()


def test_a_shard_that_is_not_up_yet_stalls_nothing_and_joins():
    plan, layout = make_replay(2, 8)
    shards = [ShardProcess(plan, layout).start(), ShardProcess(plan, layout)]
    try:
        fill(shards[0].address, layout, 10)
        reader = make_reader(shards, plan, layout, 8)
        assert shards_in(drain(reader, 200, deadline_s=20)) == {0}  # a sampler alone would wait for 30 s here
        fill(shards[1].start().address, layout, 10)
        eventually(lambda: 1 in shards_in(drain(reader, 5)), what="the shard's joining")
        reader.close()
    finally:
        for shard in shards:
            shard.kill()


@pytest.mark.slow
def test_a_killed_shard_is_reported_and_rejoins():
    plan, layout = make_replay(2, 8)
    with running(plan, layout) as shards:
        for shard in shards:
            fill(shard.address, layout, 10)
        reader = make_reader(shards, plan, layout, 8)
        assert shards_in(drain(reader, 50)) == {0, 1}
        shards[1].kill()
        eventually(lambda: drain(reader, 5) and reader.stalled == (shards[1].address,), what="the report")
        assert shards_in(drain(reader, 500)) == {0}
        fill(shards[1].start().address, layout, 10, start=50)
        eventually(lambda: 1 in shards_in(drain(reader, 5)), 60, what="the shard's re-joining")
        batch = next(batch for batch in drain(reader, 200) if 1 in batch.shard)
        assert (actions(layout, batch)[batch.shard == 1] >= 50).all()
        reader.close()


@pytest.mark.slow
def test_all_shards_gone_end_nothing_for_good():
    plan, layout = make_replay(1, 8)
    with running(plan, layout) as shards:
        fill(shards[0].address, layout, 10)
        reader = make_reader(shards, plan, layout, 8)
        drain(reader, 5)
        shards[0].kill()
        eventually(lambda: reader.next(1.0) is None, what="running dry")
        fill(shards[0].start().address, layout, 10)
        drain(reader, 50)
        shards[0].kill()
        eventually(lambda: reader.next(1.0) is None, what="running dry")
        reader.close()
        assert reader._threads.join(0.0), "the thread was left behind"


def test_a_slow_learner_is_not_the_shards_fault(two):
    plan, layout, shards = two
    reader = make_reader(shards, plan, layout, 8)
    drain(reader, 50)
    time.sleep(6.0)  # longer than the silence after which a shard counts as stalled
    assert reader.stalled == ()
    assert reader.waited_s < 5.0
    reader.close()


@pytest.mark.parametrize("split", [(8, 0), (5, 3), (1, 7)])
def test_a_queue_gives_a_batch_of_exactly_what_there_is(split):
    """Each item once, in order for each shard, and none is kept back."""
    plan, layout = make_replay(2, 8, queue=True, max_size=100)
    with running(plan, layout) as shards:
        reader = make_reader(shards, plan, layout, 8, in_flight=64)
        for shard, count in zip(shards, split, strict=True):
            if count:
                fill(shard.address, layout, count)
        batch = drain(reader, 1)[0]
        for index, count in enumerate(split):
            np.testing.assert_array_equal(actions(layout, batch)[batch.shard == index], np.arange(count))
        assert reader.next(0.5) is None
        reader.close()


def test_a_queue_is_not_drawn_far_ahead():
    """8 in a batch, 2 ready, 1 in hand, and 2 x 4 asked for: of 100 items a learner that waits leaves most."""
    plan, layout = make_replay(2, 8, queue=True, max_size=200)
    with running(plan, layout) as shards:
        reader = make_reader(shards, plan, layout, 8, in_flight=64)
        for shard in shards:
            fill(shard.address, layout, 50)
        time.sleep(1.0)
        taken = sum(shard_info(shard.address, 5.0).samples for shard in shards)
        assert taken <= 60
        got = drain(reader, 12)
        for index in (0, 1):
            seen = np.concatenate([actions(layout, batch)[batch.shard == index] for batch in got])
            np.testing.assert_array_equal(seen, np.arange(len(seen)))
        reader.close()


SIGTERM_PROGRAM = """
import signal, sys
from replay.dataset import ReplayReader
from tests.replay.shards import make_replay
plan, layout = make_replay(1, 8)
reader = ReplayReader([sys.argv[1]], layout, plan, 8, samples_in_flight=8, prefetch=1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("waiting", flush=True)
try:
    while True:
        reader.next(30.0)
finally:
    reader.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("up", [True, False])
def test_sigterm_ends_a_learner_that_waits(up):
    plan, layout = make_replay(1, 8)
    shard = ShardProcess(plan, layout)
    if up:
        shard.start()
    process = subprocess.Popen(
        [sys.executable, "-c", SIGTERM_PROGRAM, shard.address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "waiting" in process.stdout.readline()
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 7
    finally:
        process.kill()
        process.wait(10)
        shard.kill()
        if process.stdout is not None:
            process.stdout.close()
