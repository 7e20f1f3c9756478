"""A process with the tables of variables and metrics, that a test can kill, stop and start again on the same port."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.ports import free_port, is_listening


class ShardProcess:
    """One Reverb server in a process of its own."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self.address = f"localhost:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.launch()
        self.wait()

    def launch(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.replay.shard_process", str(self.port)], stdin=subprocess.PIPE
        )

    def wait(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + 100  # importing Reverb takes 5 s on a machine of its own
        while not is_listening(self.port):
            assert self.process.poll() is None, "the server's process ended"
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process = None


def running_shards(count: int) -> Iterator[list[ShardProcess]]:
    """For fixtures: starts them, and kills them afterwards."""
    shards = [ShardProcess() for _ in range(count)]
    try:
        for shard in shards:
            shard.launch()
        for shard in shards:
            shard.wait()
        yield shards
    finally:
        for shard in shards:
            shard.kill()


def eventually(condition, timeout: float = 30.0, what: str = "it") -> None:
    """Waits until `condition()` holds; fails when it doesn't in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {timeout} s")
        time.sleep(0.02)


def _main() -> None:
    import reverb

    from replay.metrics import make_metrics_table
    from replay.newest import make_variables_tables

    server = reverb.Server([*make_variables_tables(), make_metrics_table()], port=int(sys.argv[1]))
    sys.stdin.read()  # until the test that started it is gone
    server.stop()


if __name__ == "__main__":
    _main()
