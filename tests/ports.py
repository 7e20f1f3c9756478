"""Free loopback ports."""

import socket

_given: set[int] = set()


def free_port() -> int:
    """Returns a TCP port that nobody listens on, and that this process has not been given before.

    The port is closed again, so that a server can bind it; the kernel walks through its range before it gives the same
    one out again, so a second process is unlikely to get it in between.
    """
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def is_listening(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
