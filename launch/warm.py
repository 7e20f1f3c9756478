"""The warm process: imports everything once, then forks roles on request.

Importing Reverb and JAX takes 5-8 s and 500 MB; a fork of a process that has done it takes 20 ms and shares that
memory. It has one thread and starts no device, server or channel: those don't survive a fork.

A connection asks for one role: a RoleRequest is answered with Forked and, at the end, Exit; a number in between is a
signal for the role. When the connection breaks, the role is stopped.
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import logging

from agents import collector
from launch import child
from launch.processes import Channel, Exit, RoleRequest, die_with, local_environment

# What roles need; the program adds the agent's and environment's modules. Not launch.monitor: what it alone needs
# (plots, TensorBoard) takes 0.7 s, which it had better spend beside the others than before them.
MODULES = (
    "tensorflow",
    "reverb",
    "jax",
    "jax.numpy",
    "flax",
    "flax.linen",
    "optax",
    "rlax",
    "orbax.checkpoint",
    "envpool",
    "launch.accelerated_actor",
    "launch.actor",
    "launch.evaluator",
    "launch.learner",
    "launch.preflight",
    "launch.replay_shard",
)
GRACE = 5.0  # seconds from SIGTERM to SIGKILL for a role that nobody waits for any more


class Forked(NamedTuple):
    """The role's process exists."""

    pid: int


@dataclasses.dataclass(slots=True, eq=False)
class _Role:
    channel: Channel
    pid: int = 0  # 0: not asked for yet
    pidfd: int = -1
    result: int = -1
    kill_at: float = float("inf")


class WarmServer:
    """The loop of the warm process."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._roles: set[_Role] = set()
        self._stopping = False
        self._wakeup, wakeup_writer = socket.socketpair()
        for end in (self._wakeup, wakeup_writer):
            end.setblocking(False)
        self._wakeup_writer = wakeup_writer
        self._selector = selectors.DefaultSelector()
        self._watch(listener.fileno(), self._accept)
        self._watch(self._wakeup.fileno(), lambda: self._wakeup.recv(64))
        signal.set_wakeup_fd(wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._stop)

    def serve(self) -> None:
        """Serves until SIGTERM; then stops all roles and returns when they are gone."""
        while not (self._stopping and not any(role.pid for role in self._roles)):
            now = time.monotonic()
            for role in self._roles:
                if role.pid and role.kill_at <= now:
                    signal.pidfd_send_signal(role.pidfd, signal.SIGKILL)
                    role.kill_at = float("inf")
            deadline = min((role.kill_at for role in self._roles), default=float("inf"))
            timeout = None if deadline == float("inf") else max(0.0, deadline - now)
            for key, _ in self._selector.select(timeout):
                if key.fd in self._selector.get_map():  # an earlier one of this round may have closed it
                    key.data()

    def _watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for role in self._roles:
            self._terminate(role)

    def _terminate(self, role: _Role) -> None:
        if role.pid and role.kill_at == float("inf"):
            signal.pidfd_send_signal(role.pidfd, signal.SIGTERM)
            role.kill_at = time.monotonic() + GRACE

    def _accept(self) -> None:
        role = _Role(Channel(self._listener.accept()[0]))
        self._roles.add(role)
        self._watch(role.channel.fileno(), lambda: self._read(role))

    def _read(self, role: _Role) -> None:
        message = role.channel.receive()
        if isinstance(message, RoleRequest):
            if not self._stopping:
                self._fork(role, message)
        elif isinstance(message, int):
            if role.pid:
                signal.pidfd_send_signal(role.pidfd, message)
        else:
            self._selector.unregister(role.channel.fileno())
            role.channel.close()
            if role.pid:
                self._terminate(role)
            else:
                self._roles.discard(role)

    def _fork(self, role: _Role, request: RoleRequest) -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # until the child can handle them
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(request, parent, writer)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        os.close(writer)
        role.pid, role.result, role.pidfd = pid, reader, os.pidfd_open(pid)
        self._watch(role.pidfd, lambda: self._reap(role))
        role.channel.send(Forked(pid))

    def _become(self, request: RoleRequest, parent: int, result: int) -> None:
        """The rest of the child's life."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            die_with(parent, signal.SIGKILL)
            self._selector.close()
            for end in (self._listener, self._wakeup, self._wakeup_writer):
                end.close()
            for role in self._roles:
                role.channel.close()
                for descriptor in (role.pidfd, role.result):
                    if descriptor >= 0:
                        os.close(descriptor)
            child.play(request, result)
        finally:
            os._exit(1)  # never back into the parent's loop

    def _reap(self, role: _Role) -> None:
        self._selector.unregister(role.pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(role.pid, signal.SIGKILL)  # what the role itself has started
        _, status = os.waitpid(role.pid, 0)
        os.set_blocking(role.result, False)  # a process that the role left behind may hold its other end
        try:
            text = os.read(role.result, 65536).decode(errors="replace")
        except BlockingIOError:
            text = ""
        os.close(role.pidfd)
        os.close(role.result)
        self._roles.discard(role)
        if role.channel.fileno() >= 0:
            role.channel.send(Exit(os.waitstatus_to_exitcode(status), text))
            self._selector.unregister(role.channel.fileno())
            role.channel.close()


def start(
    listener: socket.socket, modules: Sequence[str], log: Path, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a warm process that serves on `listener`; requests may be sent at once.

    It ends, and its roles with it, when the calling thread or its process does.

    Args:
        listener: from launch.processes.listen; close it here afterwards.
        modules: to be imported; one that can't be is left to the roles that need it.
        log: the process's output is appended to it.
        variables: set in its environment, over this process's.
    """
    command = [
        sys.executable,
        "-m",
        "launch.warm",
        f"--parent={os.getpid()}",
        f"--socket={listener.fileno()}",
        *modules,
    ]
    limits = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # else importing NumPy starts threads
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **local_environment(), **limits, **variables},
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C in the terminal is for the launcher alone
        )


def import_all(modules: Sequence[str]) -> None:
    """Imports the modules; logs those that fail, since the role that needs them tells it better."""
    for module in modules:
        started = time.monotonic()
        try:
            with collector.held():
                importlib.import_module(module)
        except Exception:
            logging.warning("Can't import %s: %s", module, traceback.format_exc())
        logging.info("Imported %s in %.2f s.", module, time.monotonic() - started)


def main() -> None:
    """The warm process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="process that this one doesn't outlive")
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the listening socket")
    parser.add_argument("modules", nargs="*", help="to be imported")
    arguments = parser.parse_args()
    die_with(arguments.parent, signal.SIGTERM)  # so that the roles are stopped, not killed, when the launcher is killed
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    logging.set_stderrthreshold("info")
    gc.disable()  # it would go over what is imported again and again: 1 of 8.7 s
    import_all(arguments.modules)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        logging.warning(
            "The imports started %d threads: roles forked from here may hang; run.start=spawn avoids it.", threads - 1
        )
    gc.freeze()  # else the roles' collectors would write to, and so copy, what they share
    gc.enable()
    logging.info("Warm.")
    WarmServer(socket.socket(fileno=arguments.socket)).serve()


if __name__ == "__main__":
    # As a module of its own, so that what roles send and receive has the same classes as everywhere else.
    from launch import warm

    warm.main()
