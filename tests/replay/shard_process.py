"""Servers with the tables of variables and metrics, that a test can kill, stop and start again on the same port.

They are forked from one process that has imported Reverb, as importing it takes seconds, many on a busy machine.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.ports import free_port, is_listening


class ShardProcess:
    """One Reverb server in a process of its own."""

    def __init__(self, nursery: "subprocess.Popen[str]") -> None:
        self.port = free_port()
        self.address = f"localhost:{self.port}"
        self.pid = 0  # 0: not running
        self._nursery = nursery

    def start(self) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(f"{self.port}\n")
        self._nursery.stdin.flush()
        self.pid = int(self._nursery.stdout.readline())
        eventually(lambda: is_listening(self.port), what="the server's start")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            eventually(lambda: not psutil.pid_exists(self.pid), what="the server's end")
            self.pid = 0


def running_shards(count: int) -> Iterator[list[ShardProcess]]:
    """For fixtures: starts them, and kills them afterwards."""
    nursery = subprocess.Popen(
        [sys.executable, "-m", "tests.replay.shard_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    shards = [ShardProcess(nursery) for _ in range(count)]
    try:
        for shard in shards:
            shard.start()
        yield shards
    finally:
        for shard in shards:
            shard.kill()
        nursery.communicate(timeout=60)


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

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the dead are gone at once
    nursery = os.getpid()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            server = reverb.Server([*make_variables_tables(), make_metrics_table()], port=int(line))
            while os.getppid() == nursery:
                time.sleep(0.2)
            del server
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    _main()
