"""Background threads: that say what they wait for, and that never stand in the way of the end."""

import atexit
import threading
import time
from collections.abc import Callable

from absl import logging

PERIOD_S = 10.0  # seconds after which a wait is said, again and again
EXIT_S = 3.0  # seconds that threads get at exit; the longest call that ends by itself takes 2


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


class Threads:
    """Daemon threads of one owner. None keeps the process alive, yet all are asked to end when it exits: a thread that
    comes back from C++ while the interpreter is being taken down aborts the process (exit code 134, whatever it was).
    """

    def __init__(self, ask_to_end: Callable[[], None]) -> None:
        self._ask_to_end = ask_to_end
        self._threads: list[threading.Thread] = []

    def start(self, run: Callable[[], None], name: str) -> None:
        """Starts one more."""
        if not self._threads:
            atexit.register(self.end, EXIT_S)
        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def join(self, timeout: float) -> bool:
        """Whether all ended by themselves in time."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def end(self, timeout: float) -> bool:
        """Asks all to end; whether they did in time. Those that are left can't be cancelled, and are left behind."""
        self._ask_to_end()
        ended = self.join(timeout)
        if ended:
            atexit.unregister(self.end)
        return ended
