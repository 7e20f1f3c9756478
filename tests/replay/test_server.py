"""One shard: its port, its tables, and what it says about itself."""

import numpy as np
import psutil
import pytest
import reverb

from replay.layout import make_layout
from replay.plan import memory_of, plan_shard
from replay.server import Shard, shard_info
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.tables import METRICS, TRAJECTORIES, VARIABLES
from tests.ports import is_listening
from tests.replay.shards import ShardProcess, fill, make_replay, no_forkserver_left  # noqa: F401


def test_a_shard_serves_all_tables_and_stops(free_port):
    plan, layout = make_replay(1, 4)
    shard = Shard.start(free_port, plan, layout)
    tables = reverb.Client(shard.address).server_info(timeout=10)
    assert {TRAJECTORIES, VARIABLES, METRICS} <= set(tables)
    assert set(tables[TRAJECTORIES].signature) == set(layout.signature)
    shard.stop()
    shard.stop()
    assert not is_listening(free_port)
    with pytest.raises(TimeoutError, match=f"127.0.0.1:{free_port}"):
        shard_info(shard.address, 1.0)
    Shard.start(free_port, plan, layout).stop()  # the port is free again


def test_a_port_in_use_is_refused(free_port):
    plan, layout = make_replay(1, 4)
    shard = Shard.start(free_port, plan, layout)
    try:
        with pytest.raises(RuntimeError, match=f"Port {free_port} is in use"):
            Shard.start(free_port, plan, layout)
        # The control, and why: Reverb itself starts a second server there without a word.
        tables = [reverb.Table("t", *[reverb.selectors.Fifo()] * 2, 1, reverb.rate_limiters.MinSize(1))]
        reverb.Server(tables, port=free_port).stop()
    finally:
        shard.stop()


def test_another_server_is_no_shard(free_port):
    tables = [reverb.Table("t", *[reverb.selectors.Fifo()] * 2, 1, reverb.rate_limiters.MinSize(1))]
    server = reverb.Server(tables, port=free_port)
    with pytest.raises(RuntimeError, match=r"no table 'trajectories' but \['t'\]"):
        shard_info(f"127.0.0.1:{free_port}", 5.0)
    server.stop()


def test_it_says_who_waits(free_port):
    """A queue of 4; then ratio 2, min_size 3, buffer 10: inserts wait when 2 (n + 1) - 6 > 10, so after 7."""
    plan, layout = make_replay(1, 4, queue=True, max_size=4)
    shard = Shard.start(free_port, plan, layout)
    assert shard_info(shard.address, 5.0).blocked == "samples"
    fill(shard.address, layout, 3)
    assert shard_info(shard.address, 5.0).blocked == ""
    fill(shard.address, layout, 1)
    info = shard_info(shard.address, 5.0)
    assert (info.size, info.max_size, info.inserts, info.samples, info.blocked) == (4, 4, 4, 0, "inserts")
    shard.stop()
    plan, layout = make_replay(1, 4, 4, min_size=3, samples_per_insert=2.0, error_buffer=10.0)
    shard = Shard.start(free_port, plan, layout)
    seen = []
    for _ in range(7):
        fill(shard.address, layout, 1)
        seen.append(shard_info(shard.address, 5.0).blocked)
    assert seen == ["samples", "samples", "", "", "", "", ""]
    fill(shard.address, layout, 1)
    assert shard_info(shard.address, 5.0).blocked == "inserts"
    list(reverb.Client(shard.address).sample(TRAJECTORIES, 20, emit_timesteps=False))
    assert shard_info(shard.address, 5.0).samples >= 20
    shard.stop()


@pytest.mark.slow
@pytest.mark.parametrize("observation", [2, 1000])
def test_memory_of_full_tables_is_what_the_process_grows_by(observation):
    """Bytes that don't compress, more items than there is room for. Within a quarter; small items are overhead."""
    spec = ReplaySpec(trace=1, period=1, max_size=20_000, min_size=1)
    environment = EnvironmentSpec(
        observation=ArraySpec(shape=(observation,), dtype="float32"), action=DiscreteAction(count=2)
    )
    layout = make_layout(spec, environment, {}, ())
    shard = ShardProcess(plan_shard(spec, 1, 8, 8), layout).start()
    try:
        process = psutil.Process(shard.pid)
        fill(shard.address, layout, 10)
        before = process.memory_info().rss
        rng = np.random.default_rng(0)
        with reverb.Client(shard.address).trajectory_writer(num_keep_alive_refs=layout.units) as writer:
            for index in range(int(1.5 * spec.max_size)):
                shape, _ = layout.unit_signature["rows"]
                writer.append({"rows": np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8).reshape(shape)})
                if index >= layout.units:
                    writer.create_item(TRAJECTORIES, 1.0, {"rows": writer.history["rows"][-layout.units :]})
                    writer.flush(block_until_num_items=50, timeout_ms=20_000)
        grown = process.memory_info().rss - before
        assert shard_info(shard.address, 5.0).size == spec.max_size
        assert memory_of(spec, layout, 1) == pytest.approx(grown, rel=0.25)
    finally:
        shard.kill()
