"""How launch.chaos has a role raise an exception. Apart, so that roles load nothing for it."""

import signal

CHAOS_VARIABLE = "ANTIPHON_CHAOS"  # in whose processes RAISE_SIGNAL raises an exception
RAISE_SIGNAL = signal.SIGUSR2
