import reverb

from replay.canary import CANARY, sing
from tests.replay.shards import make_replay, no_forkserver_left, running  # noqa: F401


def test_what_is_inserted_last_is_sampled_and_nothing_else_is_kept():
    with running(*make_replay(1, 4)) as (shard,):
        client = reverb.Client(shard.address)
        assert all(sing(client, number) for number in (1, 2, 3))
        assert client.server_info(timeout=5)[CANARY].current_size == 1
