"""The hub: knows how every role is, decides what an end means, and tells the supervisors what to do.

It has no thread of its own: the launcher calls `poll`.
"""

import dataclasses
import selectors
import signal
import time
from collections.abc import Mapping, Sequence

from absl import logging

from launch.processes import Channel, RoleRequest, listen, signal_name
from launch.restarts import NEVER, RestartPolicy, Restarts
from launch.supervisor import Dismiss, Hello, Kill, Report, RoleStatus, Start, Stop

# Roles whose end, with a reason, is the run's; any other role that ends before it is asked to has failed.
ENDING_ROLES = ("learner", "monitor")
# Roles whose processes compute together: when one fails, the others of its role end too, and all are started again.
TOGETHER = ("learner",)
FALL_SECONDS = 3.0  # that they have to notice it in by themselves, before they are killed
# Checks before the others start; it ends without a text, or with what keeps the run from starting.
GATE = "preflight"
# Who is asked to stop after the others have stopped, or at the latest after this share of the grace period: the monitor
# reads the last records, and the shards must be there for what actors and learner still have to deliver.
# They get half of it for their last checkpoints.
STOP_AFTER = {"monitor": 0.4, "replay": 0.5}
_OVERDUE = 2.0  # seconds after the grace period until a supervisor isn't believed in any more
_SAY_EVERY = 10.0  # seconds between two log lines on what is waited for


@dataclasses.dataclass(slots=True)
class RoleState:
    """How a role is."""

    name: str
    role: str
    node: str
    log: str
    status: RoleStatus = "starting"
    pid: int = 0
    code: int | None = None  # once it has exited; -N: by signal N
    text: str = ""  # once it has exited: its reason, or the last lines of its traceback or log
    killed: bool = False  # it didn't stop in time
    cause: str = ""  # why it was killed unasked
    since: float = 0.0  # time.monotonic() of the last change
    stop_asked: bool = False
    restarts: int = 0  # how often it was started again

    @property
    def exited(self) -> bool:
        """Whether its process is gone, or never came to be."""
        return self.status == "exited"

    def describe(self) -> str:
        """How it ended, in words, with where to read more."""
        code = self.code or 0
        if self.killed:
            what = f"{self.name} did not stop in time and was killed; where it was stuck is at the end of its log"
        elif self.cause:
            what = f"{self.name} {self.cause}"
        elif code == -signal.SIGKILL:
            what = f"{self.name} was killed by SIGKILL (by somebody, or by the kernel when memory was short)"
        elif code < 0:
            what = f"{self.name} was killed by {signal_name(-code)}"
        elif code > 0:
            what = f"{self.name} failed with exit code {code}"
        else:
            what = f"{self.name} ended before the run did"
        return f"{what}. Its log: {self.log}" + (f"\n{self.text.rstrip()}" if self.text else "")


class Hub:
    """The launcher's side of all supervisors."""

    def __init__(
        self,
        requests: Sequence[RoleRequest],
        roles: Mapping[str, str],
        nodes: Mapping[str, str],
        grace: float,
        policy: RestartPolicy = NEVER,
    ) -> None:
        """All by role name, e.g. "actor-3". Those of the role GATE have to end before the others are started.

        Args:
            requests: what to start.
            roles: their roles, e.g. "actor".
            nodes: the nodes that supervise them.
            grace: seconds that roles have to stop in when the run has to end, before they are killed.
            policy: how often a role that failed is started again.
        """
        self._grace = grace
        self._listener, self.address = listen()
        self._requests = {request.name: request for request in requests}
        self.states = {
            name: RoleState(name, roles[name], nodes[name], request.log, since=time.monotonic())
            for name, request in self._requests.items()
        }
        self._restarts = Restarts(policy)
        self._due: dict[str, float] = {}  # roles to be started again, and when (time.monotonic())
        self._falling: dict[str, float] = {}  # roles that end with another one, and when they are killed
        self._started: set[str] = set()  # roles whose supervisors were told to start them
        self._channels: dict[Channel, str] = {}  # the node at the other end; "" before it has said so
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._said = time.monotonic()
        self._stop_started = self._stop_grace = 0.0
        self.reason = ""  # why the run ended
        self.failure = ""  # the first thing that went wrong
        self.problems: list[str] = []  # what went wrong after that
        self.stopping = False

    @property
    def done(self) -> bool:
        """Whether every role has exited."""
        return all(state.exited for state in self.states.values())

    @property
    def overdue(self) -> bool:
        """Whether roles are there that ought to have been killed seconds ago."""
        return self.stopping and time.monotonic() > self._stop_started + self._stop_grace + _OVERDUE

    def poll(self, timeout: float) -> None:
        """Takes what supervisors say, for up to `timeout` seconds or until something came, and acts on it."""
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._listener:
                channel = Channel(self._listener.accept()[0])
                self._channels[channel] = ""
                self._selector.register(channel, selectors.EVENT_READ, channel)
            else:
                self._hear(key.data)
        if self.stopping:
            self._stop_next()
        else:
            self._kill_fallen()
            self._restart_due()
        self._say()

    def stop(self, reason: str, grace: float | None = None) -> None:
        """Asks all roles to stop, those in STOP_AFTER last. Who hasn't after `grace` seconds is killed.

        May be called again to hurry.
        """
        grace = self._grace if grace is None else grace
        if not self.stopping:
            self.reason = reason
            self._stop_started, self._stop_grace = time.monotonic(), grace
        elif time.monotonic() + grace < self._stop_started + self._stop_grace:
            self._stop_grace = time.monotonic() + grace - self._stop_started
            for state in self.states.values():
                state.stop_asked = False
        self.stopping = True
        self._stop_next()

    def kill(self, name: str, cause: str) -> None:
        """Ends a role that doesn't answer, by force: it has failed. `cause` follows its name in what is said of it."""
        state = self.states[name]
        channel = self._channel_of(state)
        if not state.cause and not state.exited and channel is not None:
            state.cause = cause
            channel.send(Kill(name))

    def fail(self, cause: str) -> None:
        """Notes that something went wrong; the first time it stops the run."""
        if self.failure:
            self.problems.append(cause)
        else:
            self.failure = cause
        if not self.stopping:
            self.stop("")

    def node_ended(self, node: str) -> None:
        """Notes that a node's process is gone: so are its roles."""
        for state in self.states.values():
            if state.node == node and not state.exited:
                unasked = not self.stopping
                self._exit(
                    state, 1, f"Its supervisor, the Launchpad node {node!r}, ended; see launchpad.log beside its log."
                )
                if unasked:
                    self.fail(state.describe())

    def dismiss(self) -> None:
        """Lets the supervisors return."""
        for channel in self._channels:
            channel.send(Dismiss())

    def close(self) -> None:
        """Closes everything; supervisors that are left stop their roles and return."""
        for channel in self._channels:
            channel.close()
        self._selector.close()
        self._listener.close()

    def _hear(self, channel: Channel) -> None:
        message = channel.receive()
        if isinstance(message, Hello):
            self._channels[channel] = message.node
            self._start_roles()
        elif isinstance(message, Report):
            self._update(self.states[message.name], message)
        else:
            self._selector.unregister(channel)
            channel.close()
            self.node_ended(self._channels.pop(channel))

    def _start_roles(self) -> None:
        """Has all roles started whose nodes are there, those of GATE before any other."""
        gate_open = all(state.exited for state in self.states.values() if state.role == GATE)
        for channel, node in self._channels.items():
            for name, state in self.states.items():
                ready = state.node == node and not state.exited and (gate_open or state.role == GATE)
                if ready and name not in self._started and not self.stopping:
                    self._started.add(name)
                    channel.send(Start(self._requests[name]))

    def _update(self, state: RoleState, report: Report) -> None:
        if report.status != "exited":
            state.status, state.pid, state.since = report.status, report.pid or state.pid, time.monotonic()
            return
        self._exit(state, report.code, report.text)
        state.killed = report.killed
        self._judge(state)

    def _exit(self, state: RoleState, code: int, text: str) -> None:
        state.status, state.code, state.text, state.since = "exited", code, text, time.monotonic()

    def _judge(self, state: RoleState) -> None:
        """Decides what a role's end means for the run."""
        if self._falling.pop(state.name, None) is not None and not self.stopping:
            logging.warning("%s", state.describe())
            self._restart_in(state, 0.0)
        elif state.killed:
            self.problems.append(state.describe())
        elif state.code:
            self._restart_or_fail(state)
        elif state.role == GATE:
            if state.text:
                self.fail(state.text)
            else:
                self._start_roles()
        elif not self.stopping:
            if state.role in ENDING_ROLES and state.text:
                self.stop(state.text)
            else:
                self._restart_or_fail(state)

    def _restart_or_fail(self, state: RoleState) -> None:
        """A failed role is started again after a pause; one that fails too often ends the run."""
        key = state.role if state.role in TOGETHER else state.name
        pause = None if self.stopping or state.role == GATE else self._restarts.failed(key, time.monotonic())
        if pause is None:
            often = f"{state.name} was restarted {state.restarts} times before.\n" if state.restarts else ""
            self.fail(often + state.describe())
            return
        logging.warning("%s It is started again in %.1f s.", state.describe(), pause)
        self._restart_in(state, pause)
        for other in self._others(state):
            if other.name in self._started and other.status not in ("exited", "restarting"):
                self._falling[other.name] = time.monotonic() + FALL_SECONDS

    def _restart_in(self, state: RoleState, pause: float) -> None:
        self._due[state.name] = time.monotonic() + pause
        state.status, state.restarts = "restarting", state.restarts + 1

    def _others(self, state: RoleState) -> list[RoleState]:
        """Those that compute together with a role."""
        if state.role not in TOGETHER:
            return []
        return [other for other in self.states.values() if other.role == state.role and other is not state]

    def _kill_fallen(self) -> None:
        for name, deadline in self._falling.items():
            if deadline <= time.monotonic() and self.states[name].status == "running":
                self.kill(name, "was killed, for another of its role had failed and it didn't end by itself")

    def _restart_due(self) -> None:
        now = time.monotonic()
        for name in [name for name, due in self._due.items() if due <= now]:
            if any(other.name in self._falling for other in self._others(self.states[name])):
                continue
            state = self.states[name]
            channel = self._channel_of(state)
            del self._due[name]
            state.status, state.pid, state.code, state.text, state.cause = "starting", 0, None, "", ""
            if channel is not None:  # else node_ended() has been or will be told
                channel.send(Start(self._requests[name]))

    def _stop_next(self) -> None:
        """Asks those roles to stop whose turn it is."""
        elapsed = time.monotonic() - self._stop_started
        left = max(0.0, self._stop_grace - elapsed)
        for state in self.states.values():
            if state.exited or state.stop_asked:
                continue
            turn = STOP_AFTER.get(state.role, 0.0)
            earlier = (other for other in self.states.values() if STOP_AFTER.get(other.role, 0.0) < turn)
            if elapsed < turn * self._stop_grace and not all(other.exited for other in earlier):
                continue
            state.stop_asked = True
            channel = self._channel_of(state)
            if channel is None or state.name not in self._started or state.name in self._due:
                # There is no process, and there will be none.
                self._exit(state, 0, "")
            else:
                channel.send(Stop(state.name, left))

    def _channel_of(self, state: RoleState) -> Channel | None:
        """To the supervisor of a role; None while its node isn't there."""
        return next((channel for channel, node in self._channels.items() if node == state.node), None)

    def _say(self) -> None:
        waiting = [state.name for state in self.states.values() if state.status == "starting"]
        if time.monotonic() - self._said >= _SAY_EVERY:
            self._said = time.monotonic()
            if waiting:
                logging.info("Waiting for these roles to start: %s", ", ".join(waiting))
