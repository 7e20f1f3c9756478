"""Whether a shard serves: an insert and a sample on a table of its own that nothing else uses."""

import numpy as np
import reverb

CANARY = "canary"  # the table's name


def make_canary_table() -> reverb.Table:
    """A table that holds the newest item only and makes nobody wait once there is one."""
    return reverb.Table(
        name=CANARY,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


def sing(client: reverb.Client, number: int) -> bool:
    """Inserts a number and samples it back; whether it is the same. Blocks while the shard does: give it a thread."""
    client.insert([np.int64(number)], {CANARY: 1.0})
    sample = next(iter(client.sample(CANARY, num_samples=1)))
    return int(sample[0].data[0]) == number
