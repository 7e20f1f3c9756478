"""Weights through real servers that are killed, stopped and started again."""

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reverb

from replay import background
from replay.variables import MANIFESTS, VARIABLES, VariableFetcher, VariableMismatch, VariablePublisher
from tests.replay.shard_process import ShardProcess, eventually, running_shards


@pytest.fixture(scope="module")
def shards():
    yield from running_shards(2)


@pytest.fixture
def two_shards(shards):
    """Running and empty; a test may have killed them."""
    for shard in shards:
        if not shard.pid:
            shard.start()
        for table in (VARIABLES, MANIFESTS):
            reverb.Client(shard.address).reset(table)
    return shards


@pytest.fixture
def shard(two_shards):
    return two_shards[0]


@pytest.fixture
def connect():
    """Makes publishers and fetchers, and closes them."""
    made = []

    def make(kind, *args, **kwargs):
        made.append(kind(*args, **kwargs))
        if kind is VariableFetcher:
            made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.close(timeout=1.0)


def weights(value, size=100):
    return {"w": np.full(size, value, np.float32), "b": np.float32(value)}


def take_into(got, fetcher):
    """Appends what newest() gives, if it gives anything; returns `got`."""
    newest = fetcher.newest()
    if newest is not None:
        got.append(newest)
    return got


def take(fetcher, timeout=30.0):
    """The next weights that newest() gives, as (value, version)."""
    got: list[Any] = []
    eventually(lambda: take_into(got, fetcher), timeout, "newer weights")
    tree, version = got[-1]
    assert len(np.unique(tree["w"])) == 1, "weights of two publications are mixed"
    return float(tree["b"]), version


def test_what_is_published_is_fetched_once_with_its_version(shard, connect):
    fetcher = connect(VariableFetcher, shard.address, weights(0))
    assert fetcher.newest() is None
    assert not fetcher.wait(timeout=0.3)
    stop = threading.Event()
    stop.set()
    assert not fetcher.wait(timeout=60, stop=stop)
    publisher = connect(VariablePublisher, [shard.address])
    publisher.publish(weights(1.5), 10)
    assert fetcher.wait(timeout=30)
    assert take(fetcher) == (1.5, 10)
    assert fetcher.version == 10
    assert fetcher.newest() is None
    assert 0 <= fetcher.delay_s < 20
    publisher.publish(weights(2.5), 4)  # a lower version from the same publisher is newer all the same
    assert take(fetcher) == (2.5, 4)


def test_a_held_fetcher_downloads_nothing_and_then_the_newest(shard, connect):
    publisher = connect(VariablePublisher, [shard.address])
    publisher.publish(weights(1), 1)
    fetcher = connect(VariableFetcher, shard.address, weights(0), period_s=0.005)
    assert take(fetcher) == (1.0, 1)
    fetcher.held = True
    time.sleep(0.1)  # what was under way
    downloaded = fetcher.bytes_downloaded
    publisher.publish(weights(2), 2)
    eventually(lambda: publisher.counts.inserted[0] == 2)
    publisher.publish(weights(3), 3)
    eventually(lambda: publisher.counts.inserted[0] == 3)
    time.sleep(0.1)
    assert (fetcher.newest(), fetcher.bytes_downloaded) == (None, downloaded)
    fetcher.held = False
    assert take(fetcher) == (3.0, 3)


def test_nothing_is_downloaded_while_nothing_is_new(shard, connect):
    client = reverb.Client(shard.address)

    def samples():
        return client.server_info()[VARIABLES].rate_limiter_info.sample_stats.completed

    before = samples()
    publisher = connect(VariablePublisher, [shard.address])
    publisher.publish(weights(1), 1)
    fetcher = connect(VariableFetcher, shard.address, weights(0), period_s=0.005)
    take(fetcher)
    heard, downloaded = fetcher._heard, fetcher.bytes_downloaded
    assert downloaded >= 101 * 4
    eventually(lambda: fetcher._heard > heard + 0.5)  # it asked many times meanwhile
    assert fetcher.bytes_downloaded == downloaded
    assert samples() == before + 1
    publisher.publish(weights(2), 2)
    take(fetcher)
    assert fetcher.bytes_downloaded > downloaded  # control: bytes and samples are counted
    assert samples() == before + 2


def test_the_newest_of_many_arrives_and_the_replaced_are_counted(shard, connect):
    publisher = connect(VariablePublisher, [shard.address])
    fetcher = connect(VariableFetcher, shard.address, weights(0), period_s=0.001)
    got: list[Any] = []
    for version in range(1, 501):
        publisher.publish(weights(version), version)
        take_into(got, fetcher)
    eventually(lambda: [version for _, version in take_into(got, fetcher)][-1:] == [500])
    versions = [version for _, version in got]
    assert versions == sorted(set(versions))
    assert [tree["b"] for tree, _ in got] == versions
    counts = publisher.counts
    assert counts.published == 500
    assert counts.replaced[0] > 0
    eventually(lambda: sum(publisher.counts.inserted) + sum(publisher.counts.replaced) == 500)


def test_jax_arrays_of_several_types(shard, connect):
    tree = {"w": jnp.arange(300_000, dtype=jnp.float32), "h": [jnp.ones((3, 5), jnp.bfloat16), None, jnp.int32(4)]}
    fetcher = connect(VariableFetcher, shard.address, jax.eval_shape(lambda: tree))
    connect(VariablePublisher, [shard.address]).publish(tree, 1)
    assert fetcher.wait(30)
    got, _ = fetcher.newest()
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(tree))
    jax.tree.map(np.testing.assert_array_equal, got, jax.tree.map(np.asarray, tree))
    assert got["h"][0].dtype == jnp.bfloat16


def test_a_donated_tree_is_told_to_the_next_call_and_a_copy_is_fine(shard, connect):
    publisher = connect(VariablePublisher, [shard.address])
    fetcher = connect(VariableFetcher, shard.address, weights(0))
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    state = step(jax.tree.map(jnp.asarray, weights(1)))
    published = copy(state)
    for _ in range(5):
        state = step(state)  # the state's buffers are gone, those of the copy are not
    publisher.publish(published, 1)
    assert take(fetcher) == (2.0, 1)
    old = state
    state = step(state)
    assert old["w"].is_deleted()
    publisher.publish(old, 2)
    eventually(lambda: publisher._errors, what="the thread's error")
    with pytest.raises(RuntimeError, match=r"version 2.*donated.*Publish a copy"):
        publisher.publish(copy(state), 3)
    publisher.publish(copy(state), 4)
    assert take(fetcher) == (8.0, 4)


def test_a_tree_that_is_not_numbers_is_told_to_the_next_call(shard, connect):
    publisher = connect(VariablePublisher, [shard.address])
    publisher.publish({"name": "text"}, 1)
    eventually(lambda: publisher._errors)
    with pytest.raises(TypeError, match=r"version 1.*\['name'\]"):
        publisher.publish(weights(1), 2)


def test_other_weights_are_refused_before_they_are_downloaded_and_right_ones_taken_again(shard, connect):
    publisher = connect(VariablePublisher, [shard.address])
    fetcher = connect(VariableFetcher, shard.address, weights(0))
    publisher.publish(weights(1, size=100_000), 1)
    with pytest.raises(VariableMismatch, match=r"\['w'\]: got float32\[100000\], want float32\[100\]"):
        fetcher.wait(30)
    with pytest.raises(VariableMismatch, match=shard.address):
        fetcher.newest()
    assert 0 < fetcher.bytes_downloaded < 10_000
    publisher.publish(weights(2), 2)
    eventually(lambda: not fetcher._mismatch)
    assert take(fetcher) == (2.0, 2)


def test_a_dead_shard_stalls_nobody_and_has_the_newest_after_its_restart(two_shards, connect, caplog):
    dead, alive = two_shards
    publisher = connect(VariablePublisher, [dead.address, alive.address], deadline_s=1.0)
    publisher.publish(weights(1), 1)
    fetchers = [connect(VariableFetcher, shard.address, weights(0)) for shard in two_shards]
    assert [take(fetcher) for fetcher in fetchers] == [(1.0, 1)] * 2
    dead.kill()
    publisher.publish(weights(2), 2)
    assert take(fetchers[1]) == (2.0, 2)
    eventually(lambda: publisher.counts.failed[0] >= 1, what="a missed deadline")
    assert dead.address in caplog.text
    publisher.publish(weights(3), 3)
    assert take(fetchers[1]) == (3.0, 3)
    assert fetchers[0].newest() is None
    dead.start()
    got: list[Any] = []
    eventually(lambda: [version for _, version in take_into(got, fetchers[0])][-1:] == [3])
    assert [version for _, version in got] in ([3], [2, 3])  # the one that was under way may come first
    assert publisher.counts.failed[1] == 0


def test_a_fresh_shard_gets_the_newest_again_though_nothing_newer_is_published(shard, connect):
    publisher = connect(VariablePublisher, [shard.address])
    publisher.publish(weights(1), 1)
    fetcher = connect(VariableFetcher, shard.address, weights(0))
    take(fetcher)
    shard.kill()
    shard.start()
    late = connect(VariableFetcher, shard.address, weights(0))
    assert take(late) == (1.0, 1)
    heard = fetcher._heard
    eventually(lambda: fetcher._heard > heard)
    assert fetcher.newest() is None  # the same publication again is nothing new
    assert publisher.counts.inserted == (2,)


def test_a_restarted_learner_may_be_behind(shard, connect):
    fetcher = connect(VariableFetcher, shard.address, weights(0))
    first = connect(VariablePublisher, [shard.address])
    first.publish(weights(9), 900)
    assert take(fetcher) == (9.0, 900)
    first.close(1.0)
    connect(VariablePublisher, [shard.address]).publish(weights(5), 500)
    assert take(fetcher) == (5.0, 500)


def test_what_arrives_late_from_a_stopped_shard_does_not_bring_older_weights_back(shard, connect):
    fetcher = connect(VariableFetcher, shard.address, weights(0, size=1_000_000), period_s=0.002)
    publisher = connect(VariablePublisher, [shard.address], deadline_s=0.1)
    got: list[Any] = []
    for version in range(1, 7):
        shard.send(signal.SIGSTOP)
        publisher.publish(weights(version, size=1_000_000), version)
        eventually(lambda f=publisher.counts.failed[0]: publisher.counts.failed[0] > f, what="a missed deadline")
        shard.send(signal.SIGCONT)
        eventually(lambda v=version: [version for _, version in take_into(got, fetcher)][-1:] == [v])
    versions = [version for _, version in got]
    assert versions == sorted(versions)
    last = connect(VariableFetcher, shard.address, weights(0, size=1_000_000))
    assert take(last) == (6.0, 6)


def test_a_download_goes_on_after_its_shard_died_in_the_middle_of_it(shard, connect):
    size = 25_000_000  # 100 MB
    publisher = connect(VariablePublisher, [shard.address])
    publisher.publish(weights(1, size), 1)
    eventually(lambda: publisher.counts.inserted == (1,))
    fetcher = connect(VariableFetcher, shard.address, weights(0, size))
    eventually(lambda: fetcher._doing.startswith("downloading"))
    shard.kill()
    time.sleep(0.5)
    shard.start()
    assert take(fetcher, timeout=60) == (1.0, 1)


def test_waiting_is_said_with_the_address(connect, free_port, caplog, monkeypatch):
    monkeypatch.setattr(background, "PERIOD_S", 1.0)
    caplog.set_level("INFO")
    connect(VariableFetcher, f"localhost:{free_port}", weights(0))
    connect(VariablePublisher, [f"localhost:{free_port}"], deadline_s=0.5).publish(weights(1), 1)
    eventually(lambda: f"weights from localhost:{free_port}: waiting for" in caplog.text)
    eventually(lambda: f"not accepted by localhost:{free_port}" in caplog.text)


def test_garbage_in_the_tables_is_survived(shard, connect, caplog):
    client = reverb.Client(shard.address)
    for table in (VARIABLES, MANIFESTS):
        client.insert([np.arange(5, dtype=np.float32)], {table: 1.0})
    fetcher = connect(VariableFetcher, shard.address, weights(0))
    eventually(lambda: "weights from" in caplog.text)
    connect(VariablePublisher, [shard.address]).publish(weights(3), 3)
    assert take(fetcher) == (3.0, 3)


@pytest.mark.timeout(300)  # importing alone takes a minute on a machine that is busy
def test_nothing_keeps_a_process_alive(free_port):
    code = f"""
import numpy as np
from replay.metrics import MetricsReader, MetricsWriter
from replay.variables import VariableFetcher, VariablePublisher
address = "localhost:{free_port}"
VariablePublisher([address]).publish({{"w": np.zeros(3)}}, 1)
VariableFetcher(address, {{"w": np.zeros(3)}}).start()
MetricsWriter([address], "actor", 0).write({{"a": 1}})
MetricsReader([address]).read(0.1)
print("end of main")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False)
    assert "end of main" in done.stdout
    assert done.returncode == 0, done.stderr[-2000:]


def test_close_sends_what_was_published_last(shard):
    publisher = VariablePublisher([shard.address])
    publisher.publish(weights(1, 10_000_000), 1)
    publisher.close(timeout=30)
    assert publisher.counts.inserted == (1,)
    assert reverb.Client(shard.address).server_info()[MANIFESTS].current_size == 1


def travel_large(shard: ShardProcess, connect, tree):
    """Publishes and fetches `tree`, compares it, and says how many seconds it took."""
    fetcher = connect(VariableFetcher, shard.address, tree)
    publisher = connect(VariablePublisher, [shard.address])
    start = time.monotonic()
    publisher.publish(tree, 1)
    assert fetcher.wait(300)
    seconds = time.monotonic() - start
    got, _ = fetcher.newest()
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(tree), strict=True):
        assert np.array_equal(a.view(np.uint8), b.view(np.uint8))  # as bytes: noise holds NaNs
    print(f"{sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 1e6:.0f} MB in {seconds:.2f} s")


def noise(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, nbytes // 8, np.int64).view(np.float32)


def test_32_mb(shard, connect):
    travel_large(shard, connect, {"w": noise(16_000_000), "v": [noise(16_000_000, 1)]})


@pytest.mark.slow
def test_512_mb_in_one_leaf(shard, connect):
    travel_large(shard, connect, {"w": noise(512_000_000)})


@pytest.mark.big
def test_two_and_a_half_gigabytes(shard, connect):
    leaf = noise(250_000_000)
    travel_large(shard, connect, [leaf] * 10)  # ten leaves, one array: 10 GB of memory in all as it is
