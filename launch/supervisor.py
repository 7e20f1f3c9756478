"""The supervisor: what a Launchpad node of a local program runs.

It owns the processes of a few roles: starts them when the hub says so, tells the hub how they are and how they ended,
and ends them, by force if need be. It imports neither TensorFlow nor JAX and computes nothing.
"""

import contextlib
import dataclasses
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from launch.child import DUMP_SIGNAL
from launch.processes import Channel, Exit, RoleRequest, connect
from launch.warm import GRACE, Forked

DUMP_SECONDS = 0.3  # between asking a stuck role for its stacks and SIGKILL
_TAIL = 12  # lines of a role's log told as the cause of its end
# Makes importing Launchpad in a node cheaper; not for the roles.
NODE_VARIABLES = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"}

RoleStatus = Literal["starting", "running", "stopping", "exited", "restarting"]  # the last is the hub's alone


class Hello(NamedTuple):
    """To the hub: this node is there."""

    node: str
    pid: int


class Report(NamedTuple):
    """To the hub: how a role is now."""

    name: str
    status: RoleStatus
    pid: int = 0
    code: int = 0  # of exited; -N for signal N
    text: str = ""  # of exited: the role's reason, or the last lines of its traceback or log
    killed: bool = False  # of exited: it was asked to stop and didn't in time


class Start(NamedTuple):
    """From the hub: start a role, or start it again."""

    request: RoleRequest


class Stop(NamedTuple):
    """From the hub: stop a role, by force after `grace` seconds."""

    name: str
    grace: float


class Kill(NamedTuple):
    """From the hub: end a role that doesn't answer; it has failed."""

    name: str


class Dismiss(NamedTuple):
    """From the hub: nothing more to do."""


class RoleProcess(Protocol):
    """One role's process, however it was started."""

    pid: int  # 0 until it exists

    def fileno(self) -> int:
        """Readable when `poll` has news."""

    def poll(self) -> Exit | None:
        """Reads the news; how the process ended, if it has."""

    def signal(self, number: int) -> None:
        """Sends it a signal, if it exists."""

    def close(self) -> None:
        """Lets go of it."""


class ForkedRole:
    """A role forked from the warm process."""

    def __init__(self, warm: str, request: RoleRequest) -> None:
        self.pid = 0
        self._channel: Channel = connect(warm)
        self._channel.send(request)

    def fileno(self) -> int:
        """See RoleProcess."""
        return self._channel.fileno()

    def poll(self) -> Exit | None:
        """See RoleProcess."""
        message = self._channel.receive()
        if isinstance(message, Forked):
            self.pid = message.pid
            return None
        return (
            message if isinstance(message, Exit) else Exit(1, "The warm process, which it was forked from, has ended.")
        )

    def signal(self, number: int) -> None:
        """See RoleProcess."""
        self._channel.send(int(number))

    def close(self) -> None:
        """See RoleProcess."""
        self._channel.close()


class SpawnedRole:
    """A role in a plain interpreter."""

    def __init__(self, request: RoleRequest) -> None:
        reader, writer = os.pipe()
        payload = os.memfd_create("request")
        os.write(payload, pickle.dumps(request))
        os.lseek(payload, 0, os.SEEK_SET)
        command = [sys.executable, "-m", "launch.child", f"--parent={os.getpid()}", f"--result={writer}"]
        with open(request.log, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=payload,
                stdout=log,
                stderr=log,
                env={**os.environ, **request.environment},
                pass_fds=(writer,),
                start_new_session=True,
            )
        os.close(writer)
        os.close(payload)
        self.pid = self._process.pid
        self._result = reader
        self._pidfd = os.pidfd_open(self.pid)

    def fileno(self) -> int:
        """See RoleProcess."""
        return self._pidfd

    def poll(self) -> Exit | None:
        """See RoleProcess."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what the role itself has started
        code = self._process.wait()
        os.set_blocking(self._result, False)
        try:
            text = os.read(self._result, 65536).decode(errors="replace")
        except BlockingIOError:
            text = ""
        return Exit(code, text)

    def signal(self, number: int) -> None:
        """See RoleProcess."""
        self._process.send_signal(number)

    def close(self) -> None:
        """See RoleProcess."""
        os.close(self._pidfd)
        os.close(self._result)


@dataclasses.dataclass(slots=True, eq=False)
class _Role:
    request: RoleRequest
    process: RoleProcess
    log_start: int  # bytes in the log before this start
    running: bool = False
    dump_at: float = float("inf")
    kill_at: float = float("inf")
    stopping: bool = False
    dumped: bool = False  # asked for its stacks: its time is over
    killed: bool = False


class Supervisor:
    """The loop of one node."""

    def __init__(self, node: str, hub: str, warm: str) -> None:
        self._node = node
        self._hub = connect(hub)
        self._warm = warm
        self._roles: dict[str, _Role] = {}
        self._dismissed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._hub, selectors.EVENT_READ, None)
        self._hub.send(Hello(node, os.getpid()))

    def run(self) -> None:
        """Serves the hub until it says so, or is gone and the roles with it."""
        while self._roles or not self._dismissed:
            now = time.monotonic()
            for role in self._roles.values():
                self._force(role, now)
            deadline = min((min(role.dump_at, role.kill_at) for role in self._roles.values()), default=float("inf"))
            timeout = None if deadline == float("inf") else max(0.0, deadline - now)
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    self._obey(self._hub.receive())
                elif self._roles.get(key.data.request.name) is key.data:
                    self._look_at(key.data)

    def stop_all(self, cause: str = "") -> None:
        """Stops every role; `run` returns when they are gone. A cause other than the hub's wish is logged."""
        if cause:
            print(f"node {self._node} ends: {cause}", file=sys.stderr, flush=True)
        self._dismissed = True
        for role in list(self._roles.values()):
            self._stop(role, GRACE)

    def _obey(self, message: object) -> None:
        if isinstance(message, Start):
            self._start(message.request)
        elif isinstance(message, Stop):
            if message.name in self._roles:
                self._stop(self._roles[message.name], message.grace)
        elif isinstance(message, Kill):
            if message.name in self._roles:
                self._kill(self._roles[message.name])
        else:
            if message is None:
                self._selector.unregister(self._hub)
            self.stop_all("its launcher is gone" if message is None else "")

    def _start(self, request: RoleRequest) -> None:
        log = Path(request.log)
        size = log.stat().st_size if log.exists() else 0
        try:
            process = self._make(request)
        except OSError as error:
            text = "The warm process, which it was to be forked from, has ended." if self._warm else str(error)
            self._hub.send(Report(request.name, "exited", code=1, text=text))
            return
        role = _Role(request, process, size)
        self._roles[request.name] = role
        self._selector.register(process, selectors.EVENT_READ, role)
        self._hub.send(Report(request.name, "starting"))
        self._note_running(role)

    def _make(self, request: RoleRequest) -> RoleProcess:
        if self._warm:
            return ForkedRole(self._warm, request)
        return SpawnedRole(request)

    def _note_running(self, role: _Role) -> None:
        if role.process.pid and not role.running:
            role.running = True
            self._hub.send(Report(role.request.name, "stopping" if role.stopping else "running", role.process.pid))

    def _look_at(self, role: _Role) -> None:
        end = role.process.poll()
        self._note_running(role)
        if end is not None:
            self._ended(role, end)

    def _ended(self, role: _Role, end: Exit) -> None:
        self._selector.unregister(role.process)
        role.process.close()
        del self._roles[role.request.name]
        code = end.code
        if code == -signal.SIGTERM and role.stopping:
            code = 0  # it was so early in its life that it had no handler yet
        # Reading the stacks of threads that end at that moment can crash a process: it would have been killed anyway.
        role.killed |= role.stopping and role.dumped and code < 0
        text = end.text or (_tail(role.request.log, role.log_start) if code else "")
        self._hub.send(Report(role.request.name, "exited", role.process.pid, code, text, role.killed))

    def _stop(self, role: _Role, grace: float) -> None:
        if not role.process.pid:  # the warm process hasn't come to it yet, and won't without a connection
            self._ended(role, Exit(0, ""))
            return
        if not role.stopping:
            role.stopping = True
            role.process.signal(signal.SIGTERM)
            self._hub.send(Report(role.request.name, "stopping", role.process.pid))
        if not role.killed:
            role.kill_at = min(role.kill_at, time.monotonic() + grace)
            role.dump_at = min(role.dump_at, role.kill_at - DUMP_SECONDS)

    def _kill(self, role: _Role) -> None:
        role.dump_at = min(role.dump_at, time.monotonic())
        role.kill_at = min(role.kill_at, time.monotonic() + DUMP_SECONDS)

    def _force(self, role: _Role, now: float) -> None:
        """Has a role that doesn't stop write down where it is, then kills it."""
        if role.dump_at <= now:
            role.process.signal(DUMP_SIGNAL)
            role.dumped, role.dump_at = True, float("inf")
        if role.kill_at <= now:
            role.killed = role.stopping
            role.process.signal(signal.SIGKILL)
            role.kill_at = float("inf")


def _tail(log: str, start: int) -> str:
    """The last lines of a log, of those after the first `start` bytes."""
    try:
        with open(log, "rb") as file:
            file.seek(max(start, os.path.getsize(log) - 8000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL:])


def supervise(node: str, hub: str, warm: str) -> None:
    """Runs a node of the program.

    Args:
        node: its name.
        hub: address of the launcher's hub.
        warm: address of the warm process that roles are forked from; "": each is a plain interpreter of its own.
    """
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # from the terminal, meant for the launcher, which tells the hub's story
        signal.signal(number, signal.SIG_IGN)
    for name in NODE_VARIABLES:
        os.environ.pop(name, None)
    supervisor = Supervisor(node, hub, warm)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop_all("SIGTERM"))
    supervisor.run()
