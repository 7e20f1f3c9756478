"""Numbers by hand, and real servers for the limiter's claims."""

import dataclasses
import queue
import re
import threading

import numpy as np
import pytest
import reverb
import tensorflow as tf

from replay.dataset import ReplayReader
from replay.plan import plan_shard, sub_batch
from replay.spec import ReplaySpec
from replay.tables import TRAJECTORIES
from tests.replay.shards import ShardProcess, fill, make_replay, no_forkserver_left  # noqa: F401


def plan(shards=2, batch_size=8, in_flight=16, **fields):
    return plan_shard(ReplaySpec(**fields), shards, batch_size, in_flight)


def refused(text, shards=2, batch_size=8, in_flight=16, **fields):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        plan(shards, batch_size, in_flight, **fields)
    return str(caught.value)


def test_totals_are_divided():
    got = plan(4, max_size=1000, min_size=100, samples_per_insert=2.0, error_buffer=400.0)
    assert (got.max_size, got.min_size, got.samples_per_insert, got.error_buffer) == (250, 25, 2.0, 100.0)
    assert (got.shards, got.queue, got.prioritized) == (4, False, False)
    assert plan(sampler="prioritized").prioritized
    assert not plan(sampler="prioritized", queue=True).prioritized


@pytest.mark.parametrize(("value", "nearest"), [(1001, "1000 or 1002"), (999, "998 or 1000")])
def test_sizes_that_dont_divide_name_the_nearest(value, nearest):
    text = refused(f"agent_config.replay.max_size={value}", max_size=value, min_size=100)
    assert nearest in text
    assert "topology.shards=2" in text
    below, above = (int(word) for word in nearest.split(" or "))
    assert plan(max_size=below, min_size=100).max_size * 2 == below
    assert plan(max_size=above, min_size=100).max_size * 2 == above


def test_min_size_must_divide_and_fit():
    assert "Set min_size=4." in refused("agent_config.replay.min_size=3", shards=4, max_size=100, min_size=3)
    text = refused("agent_config.replay.min_size=102", max_size=100, min_size=102)
    assert "Set min_size=100 or less" in text
    assert plan(max_size=100, min_size=100).min_size == 50
    refused("agent_config.replay.min_size=0", min_size=0)


def test_a_queue_holds_a_batch():
    text = refused("agent_config.replay.max_size=6", queue=True, max_size=6)
    assert "learner.batch_size=8" in text
    assert "Set max_size=8 or more" in text
    assert plan(queue=True, max_size=8).max_size == 4
    refused("agent_config.replay.samples_per_insert=2.0", queue=True, samples_per_insert=2.0)
    assert plan(queue=True, samples_per_insert=1.0).queue


@pytest.mark.parametrize("ratio", [-0.5, float("nan"), float("inf")])
def test_ratios_that_can_never_be_met(ratio):
    refused("agent_config.replay.samples_per_insert", samples_per_insert=ratio)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [("topology.shards=0", {"shards": 0}), ("learner.batch_size=0", {"batch_size": 0}),
     ("learner.samples_in_flight=0", {"in_flight": 0})],
)  # fmt: skip
def test_counts_below_one(field, arguments):
    assert "or more" in refused(field, **arguments)


@pytest.mark.parametrize(
    ("ratio", "batch_size", "in_flight", "need"),
    [
        (1.0, 8, 16, 34),  # 17 a shard: one more than what is in flight
        (100.0, 8, 16, 200),  # one insert is worth 100 samples
        (1.0, 128, 16, 128),  # each shard answers 64 of the first batch
        (1.0, 7, 1, 8),  # a batch of 7 over 2 shards: pieces of 1, so 4 from one of them at most
    ],
)
def test_the_error_buffer_holds_what_is_drawn_ahead(ratio, batch_size, in_flight, need):
    fields = {"samples_per_insert": ratio, "max_size": 1000, "min_size": 100}
    assert plan(2, batch_size, in_flight, error_buffer=float(need), **fields).error_buffer == need / 2
    text = refused("agent_config.replay.error_buffer", 2, batch_size, in_flight, error_buffer=need - 1.0, **fields)
    assert f"Set error_buffer={need}" in text


def test_free_running_needs_no_buffer():
    assert plan(samples_per_insert=0.0, error_buffer=0.0).samples_per_insert == 0


def test_too_many_items_for_reverb():
    refused("agent_config.replay.max_size=4294967296", max_size=2**32)
    assert plan(max_size=2**32 - 2).max_size == 2**31 - 1


def test_sub_batches_divide_the_batch():
    for shards in range(1, 9):
        for batch_size in range(1, 65):
            size = sub_batch(False, shards, batch_size)
            assert batch_size % size == 0
            assert size <= max(1, batch_size // shards)
    assert [sub_batch(False, shards, 32) for shards in (1, 2, 3, 4)] == [32, 16, 8, 8]
    assert sub_batch(True, 1, 32) == 1


@pytest.mark.slow
def test_the_least_buffer_flows():
    """Actor and learner in one loop: a batch's worth of inserts, a batch; thousands of items, at the edge."""
    batch_size, in_flight, ratio = 8, 16, 2.0
    plan, layout = make_replay(
        1, batch_size, in_flight, min_size=10, samples_per_insert=ratio, error_buffer=float(in_flight + 1)
    )
    shard = ShardProcess(plan, layout).start()
    reader = ReplayReader([shard.address], layout, plan, batch_size, samples_in_flight=in_flight, prefetch=1)
    try:
        fill(shard.address, layout, 10)
        drawn = 0
        for _ in range(500):
            batch = reader.next(20.0)
            assert batch is not None, f"hung after {drawn} samples"
            drawn += batch_size
            fill(shard.address, layout, int(batch_size / ratio))
        assert drawn == 4000
    finally:
        reader.close()
        shard.kill()


def _table(ratio, minimum, buffer):
    """A limiter of its own, for Reverb's class refuses what we want to see hang."""
    offset = ratio * minimum
    limiter = reverb.rate_limiters.RateLimiter(ratio, minimum, offset - buffer, offset + buffer)
    selector = reverb.selectors.Uniform()
    return reverb.Table(TRAJECTORIES, selector, reverb.selectors.Fifo(), 100, limiter,
                        signature=tf.TensorSpec((1,), tf.int32))  # fmt: skip


@pytest.mark.parametrize(("buffer", "flows"), [(8.0, True), (3.0, False)])
def test_a_buffer_below_one_insert_hangs_both(buffer, flows, free_port):
    """Ratio 8, min_size 2: at 3 either side, 3 samples are allowed, then neither a sample nor an insert."""
    server = reverb.Server([_table(8.0, 2, buffer)], port=free_port)
    inserted: queue.Queue[int] = queue.Queue()

    def actor():
        client = reverb.Client(f"127.0.0.1:{free_port}")
        with client.trajectory_writer(1) as writer:
            for index in range(12):
                writer.append(np.int32(index))
                writer.create_item(TRAJECTORIES, 1.0, writer.history[-1:])
                writer.flush(timeout_ms=12_000 if flows else 3_000)
                inserted.put(index)

    def learner():
        client = reverb.Client(f"127.0.0.1:{free_port}")
        for _ in range(72):
            list(client.sample(TRAJECTORIES, 1, emit_timesteps=False))

    def quietly(function):
        try:
            function()
        except reverb.errors.DeadlineExceededError:  # what the test expects of a hang
            return

    threads = [threading.Thread(target=quietly, args=(f,), daemon=True) for f in (actor, learner)]
    for thread in threads:
        thread.start()
    threads[0].join(30)
    try:
        assert (inserted.qsize() == 12) == flows
        if flows:
            threads[1].join(15)
            assert not threads[1].is_alive()
    finally:
        server.stop()


def test_a_first_batch_that_the_buffer_cannot_give_hangs():
    """min_size 10, ratio 1, a buffer of 4 for a batch of 8: a learner that waits for it inserts nothing. 8 flow."""
    for buffer, flows in ((4.0, False), (8.0, True)):
        plan, layout = make_replay(1, 8, 1, min_size=10, samples_per_insert=1.0, error_buffer=8.0)
        plan = dataclasses.replace(plan, error_buffer=buffer)
        shard = ShardProcess(plan, layout).start()
        reader = ReplayReader([shard.address], layout, plan, 8, samples_in_flight=1, prefetch=1)
        try:
            fill(shard.address, layout, 10)
            assert (reader.next(20.0 if flows else 3.0) is not None) == flows
        finally:
            reader.close()
            shard.kill()
