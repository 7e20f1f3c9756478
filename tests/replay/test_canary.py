"""A shard that works says so, and one that doesn't is told from it in time."""

import os
import signal

import pytest

from replay.canary import CANARY, Canary
from replay.server import Shard, table_sizes
from tests.replay.shards import ShardProcess, eventually, make_replay, no_forkserver_left  # noqa: F401


def test_a_shard_that_works_gives_back_what_was_put_in(free_port):
    shard = Shard(free_port, *make_replay(1, 4))
    canary = Canary(shard.address)
    for _ in range(3):
        insert_s, sample_s = canary.probe(30.0)
        assert 0 < insert_s < 30
        assert 0 < sample_s < 30
    assert table_sizes(shard.address, 10.0)[CANARY] == 1
    canary.close()
    shard.stop()


def test_a_shard_that_is_not_there_is_found_out_in_time(free_port):
    canary = Canary(f"127.0.0.1:{free_port}")
    with pytest.raises((TimeoutError, RuntimeError), match=f"127.0.0.1:{free_port}"):
        canary.probe(1.0)
    canary.close()


def test_a_shard_that_stands_still_is_found_out_and_works_again():
    shard = ShardProcess(*make_replay(1, 4))
    shard.start()
    canary = Canary(shard.address)
    try:
        eventually(lambda: canary.probe(5.0))
        os.kill(shard.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="within 1 s"):
            canary.probe(1.0)
        os.kill(shard.pid, signal.SIGCONT)
        eventually(lambda: works(canary))
    finally:
        canary.close()
        shard.kill()


def works(canary: Canary) -> bool:
    try:
        return canary.probe(5.0)[0] > 0
    except (TimeoutError, RuntimeError):  # an item of before, whose confirmation came late
        return False
