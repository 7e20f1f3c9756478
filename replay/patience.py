"""Says what a thread waits for: first after ten seconds, then every ten."""

import time

from absl import logging

PERIOD_S = 10.0


class Patience:
    """One thing that is waited for. `waiting` is called again and again while it lasts, `over` when it came."""

    def __init__(self, what: str) -> None:
        self._what = what  # e.g. "publishing weights to 10.0.0.1:8000"
        self._since: float | None = None
        self._next = 0.0

    def waiting(self, why: str) -> None:
        """Logs if it is time to."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._next = now, now + PERIOD_S
        elif now >= self._next:
            self._next = now + PERIOD_S
            logging.warning("%s: waiting for %.0f s now: %s", self._what, now - self._since, why)

    def over(self) -> None:
        """It came, or is no longer waited for; says so where the wait was logged."""
        if self._since is not None and self._next > self._since + PERIOD_S:
            logging.info("%s: goes on after %.0f s", self._what, time.monotonic() - self._since)
        self._since = None
