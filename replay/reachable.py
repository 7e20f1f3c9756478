"""Whether a name is known and somebody listens at an address, within a deadline.

The system's lookup of a name has none: where the servers of the DNS don't answer, as while a cluster loses a node, it
takes ten seconds and more. So each is made in a thread of its own, which is left to itself when it takes too long.
"""

import functools
import socket
import threading
import time
from collections.abc import Callable, Sequence


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listens(address: str, timeout_s: float) -> bool:
    """Whether somebody accepts connections there, and did so in time."""
    return _succeed([lambda: socket.create_connection(split_address(address), timeout_s).close()], timeout_s)[0]


def unknown_hosts(addresses: Sequence[str], timeout_s: float) -> list[str]:
    """The addresses whose host can't be resolved now, in the time that all have together."""
    calls = [functools.partial(socket.getaddrinfo, *split_address(address)) for address in addresses]
    known = _succeed(calls, timeout_s)
    return [address for address, found in zip(addresses, known, strict=True) if not found]


def _succeed(calls: Sequence[Callable[[], object]], timeout_s: float) -> list[bool]:
    """Makes all calls at once; which of them returned in time, without an OSError."""
    done = [threading.Event() for _ in calls]

    def run(call: Callable[[], object], event: threading.Event) -> None:
        try:
            call()
        except OSError:
            return
        event.set()

    threads = [
        threading.Thread(target=run, args=pair, name="reachable", daemon=True) for pair in zip(calls, done, strict=True)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [event.is_set() for event in done]
