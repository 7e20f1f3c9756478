import reverb

from replay.canary import CANARY, sing
from tests.replay.shards import ShardProcess, make_replay


def test_what_is_inserted_last_is_sampled_and_nothing_else_is_kept():
    shard = ShardProcess(*make_replay(1, 4)).start()
    try:
        client = reverb.Client(shard.address)
        assert all(sing(client, number) for number in (1, 2, 3))
        assert client.server_info(timeout=5)[CANARY].current_size == 1
    finally:
        shard.kill()
