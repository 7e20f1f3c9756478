"""What launch.chaos has a role do to itself. Apart, so that roles load nothing for it."""

import signal
import time

CHAOS_VARIABLE = "ANTIPHON_CHAOS"  # in whose processes these signals are heeded
RAISE_SIGNAL = signal.SIGUSR2  # an exception in the main thread
DELAY_SIGNAL = signal.SIGRTMIN  # the learner publishes no weights for a while
DELAY_SECONDS = 10.0

_delayed_until = 0.0


def delay(*_: object) -> None:
    """Handles DELAY_SIGNAL."""
    global _delayed_until
    _delayed_until = time.monotonic() + DELAY_SECONDS


def is_delayed() -> bool:
    """Whether weights are to be kept back now."""
    return time.monotonic() < _delayed_until
