"""Tables that keep the newest weights, and how to see that they hold something else than before."""

import secrets
from typing import NamedTuple

import reverb

VARIABLES = "variables"  # the table of the data: items {manifest: uint8 [1, M], pieces: uint8 [pieces, piece]}
MANIFESTS = "variables_manifests"  # the table that announces it: items {manifest: uint8 [1, M]}
INFO_TIMEOUT_S = 2  # whole seconds; Reverb takes no others


class TableState(NamedTuple):
    """What tells whether a table holds something else than before."""

    life: int  # differs from one server's life to the next
    inserts: int  # in this life
    size: int  # items


def make_variables_tables() -> list[reverb.Table]:
    """The tables that weights travel through; each keeps the newest item only, and never makes anybody wait.

    A table can't say which server's life it belongs to, and its counters start again at a restart. So its
    `max_times_sampled`, a limit that is never reached, is drawn at random: `server_info` shows it, and whoever reads
    the insert counter sees a restart even where the counter looks the same.
    """
    return [
        reverb.Table(
            name=name,
            sampler=reverb.selectors.Lifo(),
            remover=reverb.selectors.Fifo(),
            max_size=1,
            max_times_sampled=2**30 + secrets.randbelow(2**30),
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        for name in (VARIABLES, MANIFESTS)
    ]


def table_state(client: reverb.Client) -> TableState:
    """The state of the announcements' table, in 0.1 ms. Raises reverb.errors.ReverbError after INFO_TIMEOUT_S.

    Its size is 0 where the data isn't there: a shard that was restarted between the two has the announcement only.
    """
    info = client.server_info(timeout=INFO_TIMEOUT_S)
    table, data = info[MANIFESTS], info[VARIABLES]
    inserts = table.rate_limiter_info.insert_stats.completed
    return TableState(table.max_times_sampled, inserts, min(table.current_size, data.current_size))
