"""Small records from every role to the monitor, through a table of each shard."""

import reverb

METRICS = "metrics"  # the table's name
MAX_RECORDS = 10_000  # in one shard's table; the oldest go first when nobody reads


def make_metrics_table() -> reverb.Table:
    """A table that hands out each record once, the oldest first, and never makes a writer wait: a full one drops its
    oldest record.
    """
    return reverb.Table(
        name=METRICS,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=MAX_RECORDS,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
