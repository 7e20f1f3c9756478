"""Who listens, and that a lookup which takes for ever keeps nobody."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from replay.reachable import listens, unknown_hosts

TIMEOUT = 0.5  # seconds
AMPLE = 5.0  # seconds, on a busy machine


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        open_socket.listen()
        yield open_socket.getsockname()[1]


def test_who_listens_is_told_from_who_does_not(listener: int) -> None:
    assert listens(f"127.0.0.1:{listener}", AMPLE)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert not listens(f"127.0.0.1:{closed.getsockname()[1]}", AMPLE)


def test_names_that_are_not_known_are_named() -> None:
    assert unknown_hosts(["127.0.0.1:1", "no-such-host.invalid:2", "[::1]:3"], AMPLE) == ["no-such-host.invalid:2"]


def test_a_lookup_without_an_answer_ends_with_the_time(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = socket.getaddrinfo

    def slow(host: Any, *others: Any, **more: Any) -> Any:
        if host == "slow.invalid":
            time.sleep(4 * AMPLE)
        return lookup(host, *others, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    began = time.monotonic()
    assert not listens(f"slow.invalid:{listener}", TIMEOUT)
    assert unknown_hosts(["slow.invalid:1", "127.0.0.1:1", "slow.invalid:2"], TIMEOUT) == [
        "slow.invalid:1", "slow.invalid:2",
    ]  # fmt: skip
    assert time.monotonic() - began < AMPLE
