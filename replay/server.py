"""One replay shard: a Reverb server with its tables, and what it says about itself."""

import dataclasses
import socket
from typing import Any, Literal

import reverb
from absl import logging

from replay.layout import Layout
from replay.tables import TRAJECTORIES, ShardPlan, make_tables

Blocked = Literal["inserts", "samples", ""]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardInfo:
    """Where the trajectories table of a shard stands. Counts are since its start or its checkpoint's."""

    size: int  # items
    max_size: int  # items
    inserts: int  # items
    samples: int  # items, those that a dataset fetched ahead included
    blocked: Blocked  # "inserts": writers must wait, the learner is slow; "samples": it must wait, the actors are slow


class Shard:
    """A running server. It lives as long as this object: keep it, and stop() it."""

    def __init__(self, port: int, plan: ShardPlan, layout: Layout, checkpointer: Any = None) -> None:
        """Starts serving on all interfaces at `port`.

        Raises:
            RuntimeError: something already listens on the port.
        """
        _check_port(port)
        self.port = port
        self._server: reverb.Server | None = reverb.Server(make_tables(plan, layout), port, checkpointer)
        logging.info("replay shard up on port %d, room for %d items", port, plan.max_size)

    @classmethod
    def start(cls, port: int, plan: ShardPlan, layout: Layout, checkpointer: Any = None) -> "Shard":
        """The same as the constructor, for those who read a verb better."""
        return cls(port, plan, layout, checkpointer)

    @property
    def address(self) -> str:
        """For clients on this machine."""
        return f"127.0.0.1:{self.port}"

    def checkpoint(self) -> str:
        """Writes a checkpoint; the folder it is in. Takes about a second for 50 MB, in which insertions may wait."""
        return str(reverb.Client(self.address).checkpoint())

    def stop(self) -> None:
        """Ends the server and frees its port; calls that wait in it fail at their clients. Can be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            logging.info("replay shard on port %d stopped", self.port)


def table_sizes(address: str, timeout_s: float) -> dict[str, int]:
    """Items in each table of a server. Raises reverb.errors.DeadlineExceededError after `timeout_s`."""
    tables = reverb.Client(address).server_info(timeout=max(1, round(timeout_s + 0.49)))
    return {name: table.current_size for name, table in tables.items()}


def shard_info(address: str, timeout_s: float) -> ShardInfo:
    """Asks a shard how it stands.

    Raises:
        TimeoutError: no answer within `timeout_s` (rounded up to a second).
        RuntimeError: the server there has no trajectories table.
    """
    try:
        tables = reverb.Client(address).server_info(timeout=max(1, round(timeout_s + 0.49)))
    except reverb.errors.DeadlineExceededError as error:
        raise TimeoutError(f"replay shard {address} didn't answer within {timeout_s:g} s: is it up?") from error
    if TRAJECTORIES not in tables:
        raise RuntimeError(
            f"The Reverb server at {address} has no table {TRAJECTORIES!r} but {sorted(tables)}: it is no replay shard "
            f"of this program. Check the addresses."
        )
    table = tables[TRAJECTORIES]
    limiter = table.rate_limiter_info
    return ShardInfo(
        size=table.current_size,
        max_size=table.max_size,
        inserts=limiter.insert_stats.completed,
        samples=limiter.sample_stats.completed,
        blocked=_who_waits(table.current_size, limiter),
    )


def _who_waits(size: int, limiter: Any) -> Blocked:
    """What the limiter would not let through now, by its own rules (rate_limiter.cc)."""
    if size < limiter.min_size_to_sample:
        return "samples"
    inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
    if (inserts + 1) * limiter.samples_per_insert - samples > limiter.max_diff:
        return "inserts"
    if inserts * limiter.samples_per_insert - samples - 1 < limiter.min_diff:
        return "samples"
    return ""


def _check_port(port: int) -> None:
    """Two Reverb servers on one port both start (SO_REUSEPORT), and the kernel splits their clients between them."""
    family, host = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # connections that linger of an earlier server are fine
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise RuntimeError(
                f"Port {port} is in use, so no replay shard can start there ({error.strerror}): a second server on it "
                f"would get half of the first one's clients. End the process that listens there (`ss -ltnp`), or "
                f"choose another port."
            ) from error
