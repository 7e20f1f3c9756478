"""Several learner processes as one learner: they meet, do the same updates, and end together.

An update's collectives wait for every process, in C++, for ever. So none is begun before all have a batch for it: each
says so to the first process over a connection of its own, which then lets all go. That happens while the update before
is still under way. The same connections carry the wish to stop, which takes effect before the same update everywhere,
and break when a process dies: the others then end at once, and name it.

JAX's own coordination service finds a dead process too, but only when its heartbeats have been missing for 100 s.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import jax
from absl import logging

from launch.processes import COORDINATOR
from replay.background import Patience
from replay.reachable import unknown_hosts

LOOPBACK = ("127.0.0.1", "localhost", "::1")
RETRY_S = 0.2  # between two tries to reach the first process
CONNECT_S = 5.0  # for one try, and for a connection's first word
SETTLE_S = 2.0  # that the news of a peer's death has to overtake the errors which follow from it


class LearnerGroup:
    """One learner process's side. Of a single process all of it is trivial."""

    def __init__(self, rank: int, processes: int, stop: threading.Event) -> None:
        """`rank` among `processes`; `stop` asks the whole group to end."""
        self.rank, self.processes = rank, processes
        self._stop = stop
        self._changed = threading.Condition()
        self._peers: dict[int, _Peer] = {}  # by rank; all others of the first process, the first of all others
        self._ready: dict[int, int] = {}  # by rank: the step that it has a batch for
        self._granted = self._done = -1  # the newest step that all may do, and that this process has begun
        self._end = self._asked = self._failed = False
        self._left: set[int] = set()  # ranks that have nothing more to do
        self._service = ""  # address of JAX's coordination service

    def join(self) -> bool:
        """Meets the others and makes them one JAX program. False where `stop` was set before all were there.

        Call it in the main thread, before anything asks JAX for devices.

        Raises:
            ValueError: nobody has said where the first process listens.
        """
        if self.processes == 1:
            return True
        host, _ = coordinator()
        if not self.meet():
            return False
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            self._service,
            self.processes,
            self.rank,
            coordinator_bind_address=f"{_interface(host)}:{self._service.rpartition(':')[2]}",
            cluster_detection_method="deactivate",
        )
        # JAX has put a handler of its own there, in C++, which tells nobody.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        logging.info("All %d learner processes are here.", self.processes)
        return True

    def meet(self) -> bool:
        """The part of join() that doesn't concern JAX."""
        host, port = coordinator()
        return self._gather(host, port) if self.rank == 0 else self._reach(host, port)

    @property
    def ended(self) -> bool:
        """Whether no further update is to be begun. Passes the wish to stop on."""
        if self.processes == 1:
            return self._stop.is_set()
        if self._stop.is_set() and not self._asked:
            self._asked = True
            self._ask_to_end()
        with self._changed:
            return self._end and self._granted <= self._done

    def may_go(self, step: int, timeout_s: float) -> bool:
        """Says that this process has a batch for `step`; whether all others have theirs, after `timeout_s` at most."""
        if self.processes == 1:
            return True
        with self._changed:
            if self._ready.get(self.rank) != step:
                self._ready[self.rank] = step
                if self.rank:
                    self._peers[0].send(ready=step)
            self._changed.wait_for(lambda: self._decided(step), timeout_s)
            if self.rank == 0 and not self._end and self._all_ready(step):
                self._granted = step
                self._send_all(go=step)
            if self._granted >= step:
                self._done = step
                return True
            return False

    @property
    def missing(self) -> str:
        """Who has no batch yet, as far as this process knows."""
        if self.rank:
            return "the other learner processes"
        with self._changed:
            mine = self._ready.get(0, -1)
            return ", ".join(f"learner-{rank}" for rank in self._peers if self._ready.get(rank, -1) < mine)

    def fail(self, error: BaseException) -> None:
        """Tells the others that this process ends with an error, if that isn't the echo of another one's end."""
        if self.processes > 1:
            time.sleep(SETTLE_S)  # a broken collective raises before the broken connection has been looked at
            self._failed = True  # and so will end by that, not by what the others make of it
            self._send_all(failed=f"learner-{self.rank} failed: {type(error).__name__}: {error}")

    def leave(self) -> None:
        """Waits until all have come to their end, so that nobody takes another's for a failure; then parts."""
        if self.processes > 1:
            self.part()
            jax.distributed.shutdown()

    def part(self) -> None:
        """The part of leave() that doesn't concern JAX."""
        patience = Patience("the end of the learner")
        with self._changed:
            self._send_all(bye=True)
            while not self._changed.wait_for(lambda: self._left >= self._peers.keys(), 1.0):
                patience.waiting(f"learner processes {sorted(self._peers.keys() - self._left)} aren't done yet")

    def _gather(self, host: str, port: int) -> bool:
        patience = Patience("learner-0")
        with socket.create_server((_interface(host), port)) as server:
            server.settimeout(1.0)
            while len(self._peers) < self.processes - 1:
                if self._stop.is_set():
                    return False
                missing = sorted({*range(1, self.processes)} - self._peers.keys())
                patience.waiting(f"learner processes {missing} haven't come to {host}:{port} yet")
                with contextlib.suppress(TimeoutError):
                    self._welcome(server.accept()[0])
        with socket.create_server((_interface(host), 0)) as probe:
            self._service = f"{host}:{probe.getsockname()[1]}"
        self._send_all(service=self._service)
        return True

    def _welcome(self, connection: socket.socket) -> None:
        """Takes in who says that it is one of the missing; anybody else is shown the door."""
        peer = _Peer(connection)
        connection.settimeout(CONNECT_S)
        rank = (peer.receive() or {}).get("join")
        if not isinstance(rank, int) or rank in self._peers or not 0 < rank < self.processes:
            logging.warning("A connection that is none of the missing learner processes: rank %r.", rank)
            connection.close()
            return
        self._take_in(rank, peer)

    def _reach(self, host: str, port: int) -> bool:
        patience = Patience(f"learner-{self.rank}")
        while not self._peers:
            if self._stop.is_set():
                return False
            try:
                if unknown_hosts([f"{host}:{port}"], CONNECT_S):
                    raise ConnectionError("its name isn't known")
                connection = socket.create_connection((host, port), CONNECT_S)
            except OSError as error:
                patience.waiting(f"learner-0 isn't at {host}:{port} yet ({error})")
                self._stop.wait(RETRY_S)
                continue
            peer = _Peer(connection)
            peer.send(join=self.rank)
            self._take_in(0, peer)
        with self._changed:
            while not self._changed.wait_for(lambda: self._service, 1.0):
                patience.waiting("learner-0 waits for the others")
                if self._stop.is_set():
                    return False
        return True

    def _take_in(self, rank: int, peer: "_Peer") -> None:
        peer.connection.settimeout(None)
        self._peers[rank] = peer
        threading.Thread(target=self._listen, args=(rank, peer), name=f"learner-{rank}", daemon=True).start()

    def _listen(self, rank: int, peer: "_Peer") -> None:
        while (message := peer.receive()) is not None:
            with self._changed:
                self._hear(rank, message)
                self._changed.notify_all()
        asked_before_all_met = self._stop.is_set() and not self._service
        if rank not in self._left and not asked_before_all_met:
            self._fall(f"learner-{rank} is gone")

    def _hear(self, rank: int, message: dict[str, Any]) -> None:
        match message:
            case {"service": str(address)}:
                self._service = address
            case {"ready": int(step)}:
                self._ready[rank] = step
            case {"go": int(step)}:
                self._granted = step
            case {"end": _}:
                self._end = True
            case {"stop": _}:
                self._ask_to_end()
            case {"failed": str(text)}:
                self._fall(text)
            case {"bye": _}:
                self._left.add(rank)

    def _ask_to_end(self) -> None:
        """The first process decides, between two updates; the others ask it to."""
        with self._changed:
            if self.rank:
                self._peers[0].send(stop=True)
            elif not self._end:
                self._end = True
                self._send_all(end=True)
            self._changed.notify_all()

    def _decided(self, step: int) -> bool:
        return self._end or self._granted >= step or (self.rank == 0 and self._all_ready(step))

    def _all_ready(self, step: int) -> bool:
        return all(self._ready.get(rank, -1) >= step for rank in (0, *self._peers))

    def _send_all(self, **message: Any) -> None:
        for peer in self._peers.values():
            peer.send(**message)

    def _fall(self, cause: str) -> None:
        """Ends this process from whatever thread: the main one may be within a collective that never returns. Not one
        that is about to end with an error of its own.
        """
        if self._failed:
            return
        if self.rank == 0:
            self._send_all(failed=cause)
        logging.error(
            "%s, so learner-%d ends too: no update can be made without all %d learner processes. They go on together "
            "from the newest checkpoint.", cause, self.rank, self.processes,
        )  # fmt: skip
        sys.stderr.flush()
        os._exit(1)


def coordinator() -> tuple[str, int]:
    """Where the first learner process listens.

    Raises:
        ValueError: the environment doesn't say it.
    """
    host, colon, port = os.environ.get(COORDINATOR, "").rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(
            f"{COORDINATOR}={os.environ.get(COORDINATOR, '')!r} must be HOST:PORT, where learner-0 listens and the "
            "others reach it. The local launcher sets it; on a cluster set it in every learner's environment, or set "
            "learner.processes=1."
        )
    return host.strip("[]"), int(port)


def _interface(host: str) -> str:
    """Which of this machine's addresses to listen at."""
    return host if host in LOOPBACK else "0.0.0.0"


class _Peer:
    """A connection that carries one JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._lines = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        """What can't be sent is lost: the thread that listens notices why."""
        with self._lock, contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other end is gone, or speaks another language."""
        try:
            message = json.loads(self._lines.readline())
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None
