"""Which roles have given no sign of life for too long, by what the monitor writes down once a second.

Every process sends a record at least every two seconds, from a thread of its own; one that is stopped, or that hangs in
C++ with Python's lock in its hands, doesn't.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from launch.run_state import RunStatus

START_SECONDS = 180.0  # that a process has for its first word: a plain interpreter imports for long on a busy machine
GAP_SECONDS = 5.0  # between two looks, of the launcher or of the monitor, after which everybody gets time anew
MONITOR = "monitor-0"


class Living(NamedTuple):
    """A role's process that runs."""

    name: str
    since: float  # seconds since the epoch when it was started


class Heartbeats:
    """Looks at one status after the other. Pure but for what it remembers."""

    def __init__(self, limit: float) -> None:
        """`limit` in seconds; 0: nobody is ever called silent."""
        self._limit = limit or math.inf
        self._looked = self._written = -math.inf
        # Silence before these says nothing, for who should have listened did not: all, and all but the shards.
        self._fair_from = self._heard_from = -math.inf

    def silent(self, status: RunStatus | None, roles: Iterable[Living], now: float) -> dict[str, float]:
        """Seconds of silence of each role that has been silent for too long. `now` in seconds since the epoch."""
        if now - self._looked > GAP_SECONDS:  # this machine was asleep, or the launcher was stopped
            self._fair_from = now
        self._looked = now
        if status is None or status.ended:
            return {}
        if status.time - self._written > GAP_SECONDS:  # the same of the monitor
            self._fair_from = now
        self._written = status.time
        if any(shard.error for shard in status.state.shards):  # records may lie in a shard that doesn't answer
            self._heard_from = now
        words = {role.name: role.time for role in status.state.roles} | {MONITOR: status.time}
        # Time passes only while somebody is heard: where nobody is, the fault lies with those who should listen.
        speakers = [word for name, word in words.items() if name != MONITOR and not _is_shard(name)]
        clocks = {MONITOR: now, "replay": status.time, "": max(speakers, default=0.0)}
        overdue = {}
        for role in roles:
            clock = clocks.get(role.name) or clocks["replay" if _is_shard(role.name) else ""]
            silence = self._silence(role, words.get(role.name, 0.0), clock)
            if silence:
                overdue[role.name] = silence
        return {MONITOR: overdue[MONITOR]} if MONITOR in overdue else overdue  # without it nothing is known of others

    def _silence(self, role: Living, word: float, clock: float) -> float:
        """Seconds since a role's last word; 0 where that is not too long."""
        deaf = -math.inf if role.name == MONITOR or _is_shard(role.name) else self._heard_from
        silence = clock - max(word, role.since, self._fair_from, deaf)
        return silence if silence > (self._limit if word > role.since else START_SECONDS) else 0.0


def _is_shard(name: str) -> bool:
    return name.startswith("replay-")
