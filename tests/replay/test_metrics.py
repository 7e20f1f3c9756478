"""Records through real servers, dead ones and strangers' data among them."""

import math
import os
import random
import sys
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import reverb

from replay import metrics
from replay.metrics import METRICS, WINDOW, Arrived, MetricsReader, MetricsWriter
from tests.ports import free_port
from tests.replay.shard_process import eventually, running_shards


@pytest.fixture(scope="module")
def shards():
    yield from running_shards(2)


@pytest.fixture
def mortal_shards():
    """Of one test alone: what was under way to a shard that it killed arrives there later, whichever test runs then."""
    yield from running_shards(2)


@pytest.fixture
def addresses(shards):
    for shard in shards:
        reverb.Client(shard.address).reset(METRICS)
    return [shard.address for shard in shards]


@pytest.fixture
def connect():
    made = []

    def make(kind, *args):
        made.append(kind(*args))
        return made[-1]

    yield make
    for each in made:
        each.close(timeout=1.0)


def read_into(got, reader, timeout=2.0):
    """Appends what is read, without what every record has, and without beats; returns `got`."""
    for record in reader.read(timeout):
        if "quiet_s" not in record.values:
            got.append({name: value for name, value in record.values.items() if name != "pid"})
    return got


def size(address):
    return reverb.Client(address).server_info(timeout=5)[METRICS].current_size


def test_records_arrive_once_with_their_values_from_every_shard(addresses, connect):
    written = {
        "steps": 3,
        "loss": np.float32(0.5),
        "step": jnp.int32(7),
        "bf": jnp.bfloat16(1.5),
        "state": "running",
        "episodes": [[1.0, 5], (np.float64(2.0), 6)],
        "returns": np.array([1, 2]),
        "none": None,
        "flag": np.bool_(True),
    }
    for index in (0, 1):
        writer = MetricsWriter(addresses, "actor", index)
        writer.write(written)
        writer.close(30)
    assert [size(address) for address in addresses] == [1, 1]  # the roles spread over the shards
    reader = connect(MetricsReader, addresses)
    records = reader.read(30)
    assert [(r.role, r.index) for r in records] == [("actor", 0), ("actor", 1)]
    assert records[0].values == {
        "pid": os.getpid(),
        "steps": 3,
        "loss": 0.5,
        "step": 7,
        "bf": 1.5,
        "state": "running",
        "episodes": [[1.0, 5], [2.0, 6]],
        "returns": [1, 2],
        "none": None,
        "flag": True,
    }
    assert 0 <= records[1].time - records[0].time < 60
    assert reader.read() == []
    assert reader.silent == []


def test_nan_and_infinities_are_kept(addresses, connect):
    connect(MetricsWriter, addresses, "learner", 0).write(
        {"loss": float("nan"), "a": np.float32("inf"), "b": [-math.inf, jnp.float32("nan")]}
    )
    reader = connect(MetricsReader, addresses)
    got: list[Any] = []
    eventually(lambda: read_into(got, reader))
    values = got[0]
    assert math.isnan(values["loss"])
    assert values["a"] == math.inf
    assert values["b"][0] == -math.inf
    assert math.isnan(values["b"][1])


def test_a_process_that_writes_nothing_still_says_that_it_lives(addresses, connect, monkeypatch):
    monkeypatch.setattr(metrics, "BEAT_S", 0.1)
    connect(MetricsWriter, addresses, "learner", 0).write({"step": 1})
    reader = connect(MetricsReader, addresses)
    got: list[Any] = []

    def read() -> int:
        got.extend(record.values for record in reader.read())
        return len(got)

    eventually(lambda: read() > 2)
    assert got[0] == {"pid": os.getpid(), "step": 1}
    quiet = [values["quiet_s"] for values in got[1:]]
    assert quiet == sorted(quiet)
    assert quiet[0] >= 0.1
    assert {values["pid"] for values in got} == {os.getpid()}


def test_records_of_one_role_keep_their_order(addresses, connect):
    writer = MetricsWriter(addresses, "actor", 0)
    for n in range(200):
        writer.write({"n": n})
    writer.close(30)
    records = connect(MetricsReader, addresses).read(30)
    assert [record.values["n"] for record in records] == list(range(200))


def test_a_value_that_cannot_be_written_does_not_take_the_others_with_it(addresses, connect, caplog):
    writer = MetricsWriter(addresses, "actor", 0)
    writer.write({"good": 1, "bad": object()})
    writer.close(30)
    assert [record.values["good"] for record in connect(MetricsReader, addresses).read(30)] == [1]
    assert "bad" in caplog.text


def test_while_no_shard_answers_the_oldest_are_dropped_and_counted(connect, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_WAITING", 10)
    writer = MetricsWriter([f"localhost:{free_port()}"], "actor", 0)
    for n in range(25):
        writer.write({"n": n})
    with writer._condition:
        waiting = [record["values"] for record in writer._mailbox]
    writer.close(0.1)
    assert [values["n"] for values in waiting] == list(range(15, 25))
    assert [values["metrics_dropped"] for values in waiting] == list(range(6, 16))


def test_a_dead_shard_is_gone_around_by_writers_and_readers_and_taken_up_again(mortal_shards, connect, caplog):
    addresses, dead = [shard.address for shard in mortal_shards], mortal_shards[0]
    reader = connect(MetricsReader, addresses)
    writer = connect(MetricsWriter, addresses, "actor", 0)
    writer.write({"n": 0})
    eventually(lambda: size(dead.address) == 1)
    dead.kill()
    writer.write({"n": 1})  # the writer is at the dead shard
    got: list[Any] = []
    eventually(lambda: read_into(got, reader, 0.5) == [{"n": 1}])
    assert reader.silent == [dead.address]
    dead.start()
    eventually(lambda: not reader.read() and not reader.silent, what="the shard's return")
    other = connect(MetricsWriter, [dead.address], "actor", 1)
    other.write({"n": 2})
    eventually(lambda: read_into(got, reader) == [{"n": 1}, {"n": 2}])


def test_what_is_no_record_is_counted_and_the_good_ones_after_it_arrive(addresses, connect, caplog):
    client = reverb.Client(addresses[0])

    def insert(*columns):
        client.insert(list(columns), {METRICS: 1.0})

    def text(words):
        return np.frombuffer(words.encode(), np.uint8)

    garbage = [
        (np.array([255, 0, 200], np.uint8),),
        (np.arange(5, dtype=np.float32),),
        (np.array(["text"], dtype=object),),
        (text('{"role": 1, "index": 0, "time": 0, "values": {}, "id": ""}'),),
        (text('{"role": "actor", "index": 0, "time": "late", "values": {}, "id": ""}'),),
        (text('{"role": "actor"}'),),
        (text("[1]"),),
        (text("{}"), text("{}")),
        (np.uint8(3),),
    ]
    for columns in garbage:
        insert(*columns)
    writer = MetricsWriter(addresses, "actor", 0)
    writer.write({"n": 5})
    writer.close(30)
    reader = connect(MetricsReader, addresses)
    assert [record.values["n"] for record in reader.read(30)] == [5]
    assert reader.bad_records == len(garbage)
    assert "no record" in caplog.text


def test_a_full_table_drops_its_oldest_and_blocks_no_writer(connect):
    table = metrics.make_metrics_table()
    server = reverb.Server([table], port=free_port())
    try:
        client = reverb.Client(f"localhost:{server.port}")
        extra = 100
        with client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for n in range(metrics.MAX_RECORDS + extra):
                writer.append({"n": np.int32(n)})
                writer.create_item(METRICS, 1.0, {"n": writer.history["n"][-1:]})
            writer.flush(timeout_ms=60_000)  # raises where a writer is blocked
        assert size(f"localhost:{server.port}") == metrics.MAX_RECORDS
        oldest = next(iter(client.sample(METRICS, emit_timesteps=False)))
        assert oldest.data[0][0] == extra
        assert size(f"localhost:{server.port}") == metrics.MAX_RECORDS - 1  # read once, and gone
    finally:
        server.stop()


def test_many_writers_at_once_lose_nothing(addresses, connect):
    def work(index):
        writer = MetricsWriter(addresses, "actor", index)
        for n in range(50):
            writer.write({"n": n, "index": index})
        writer.close(60)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    reader = connect(MetricsReader, addresses)
    got: list[Any] = []
    for thread in threads:
        thread.start()
    eventually(lambda: len(read_into(got, reader)) == 400)
    for thread in threads:
        thread.join(10)
    assert sorted((values["index"], values["n"]) for values in got) == [
        (index, n) for index in range(8) for n in range(50)
    ]


def test_each_record_is_taken_once_in_whatever_order_they_come():
    rng = random.Random(0)
    numbers = [n for n in range(3 * WINDOW) for _ in range(rng.choice((1, 2)))]
    numbers = [n for _, n in sorted((n + rng.randrange(WINDOW // 2), n) for n in numbers)]  # late, but not by a window
    arrived = Arrived()
    assert sorted(n for n in numbers if arrived.add(n)) == list(range(3 * WINDOW))


def test_what_comes_too_late_to_be_known_is_left_out():
    arrived = Arrived()
    assert arrived.add(0)
    assert arrived.add(10**15)  # of a writer gone mad: costs no memory
    assert not arrived.add(5)
    assert arrived.add(10**15 - WINDOW + 1)
    assert not arrived.add(10**15 - WINDOW)
    assert sys.getsizeof(arrived._bits) < WINDOW
