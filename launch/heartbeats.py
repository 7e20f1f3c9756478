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
        others = [word for name, word in words.items() if name != MONITOR and not name.startswith("replay-")]
        overdue = {}
        for role in roles:
            clock, fair_from = max(others, default=0.0), max(self._fair_from, self._heard_from)
            if role.name == MONITOR or role.name.startswith("replay-"):
                clock, fair_from = now if role.name == MONITOR else status.time, self._fair_from
            word = words.get(role.name, 0.0)
            silence = clock - max(word, role.since, fair_from)
            if silence > (self._limit if word > role.since else START_SECONDS):
                overdue[role.name] = silence
        return {MONITOR: overdue[MONITOR]} if MONITOR in overdue else overdue  # without it nothing is known of others
