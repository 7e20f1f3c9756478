"""Weights through Reverb: every shard holds the newest ones, in a table of its own."""

import secrets

import reverb

VARIABLES = "variables"  # the table's name


def make_variables_tables() -> list[reverb.Table]:
    """The tables that weights travel through: one that keeps the newest weights only.

    A table can't say which server's life it belongs to, and its counters start again at a restart. So its
    `max_times_sampled`, a limit that is never reached, is drawn at random: `server_info` shows it, and whoever reads
    the insert counter sees a restart even where the counter looks the same.
    """
    return [
        reverb.Table(
            name=VARIABLES,
            sampler=reverb.selectors.Lifo(),
            remover=reverb.selectors.Fifo(),
            max_size=1,
            max_times_sampled=2**30 + secrets.randbelow(2**30),
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
    ]
