"""A local program: roles as Launchpad nodes under supervision, from start to a clean end."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import psutil
from absl import flags, logging

from launch import warm
from launch.heartbeats import Heartbeats, Living
from launch.hub import GATE, Hub, RoleState
from launch.processes import RoleRequest, listen, local_environment, role_environment, signal_name
from launch.restarts import NEVER, RestartPolicy
from launch.roles import FUNCTIONS, Assignment
from launch.run_directory import RunDirectory
from launch.run_state import read_status
from launch.supervisor import NODE_VARIABLES, supervise

GRACE = 8.0  # seconds that roles have to stop in before they are killed
HURRIED_GRACE = 1.5  # the same after a second Ctrl-C
# Launchpad nodes for roles of one kind; further roles share them. A node costs 0.5 s of CPU time, most of it for the
# import of Launchpad: a few are free while the warm process imports on another core, hundreds are not.
NODES_PER_GROUP = 4
_EXEC_SECONDS = 5.0  # that a new process has to show its arguments
TICK = 0.25  # seconds between two calls of on_tick
LOOK = 1.0  # seconds between two looks for signs of life
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Outcome(NamedTuple):
    """How a run ended."""

    code: int  # 0: it reached its end; 1: a role failed; 128 + N: stopped by signal N
    reason: str  # why it ended, in a few words
    failure: str  # the first thing that went wrong, with the role's name, log and last lines; "" if nothing did
    problems: tuple[str, ...]  # what went wrong after it, and roles that had to be killed


class _Signals:
    """Signals that ask the launcher to stop: counted, and acted upon by its loop."""

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self._before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}

    def install(self) -> None:
        for number, before in self._before.items():
            if not (number == signal.SIGHUP and before == signal.SIG_IGN):  # nohup
                signal.signal(number, self._note)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _: object) -> None:
        self.first = self.first or number
        self.count += 1


def run_program(
    assignments: Sequence[Assignment],
    *,
    start: Literal["warm", "spawn"] = "warm",
    modules: Sequence[str] = warm.MODULES,
    environments: Mapping[str, Mapping[str, str]] | None = None,
    on_tick: Callable[[Mapping[str, RoleState]], None] | None = None,
    grace: float = GRACE,
    functions: Mapping[str, str] = FUNCTIONS,
    policy: RestartPolicy = NEVER,
    silence: float = 0.0,
) -> Outcome:
    """Runs all roles until one ends the run, one fails, or a signal comes; nothing is left running.

    Call it from the main thread: it takes SIGINT, SIGTERM and SIGHUP while it runs.

    Args:
        assignments: one for each role; they share a run directory, whose logs/ gets a file for each of them.
        start: fork roles from a warm process, or give each a plain interpreter.
        modules: what the warm process imports.
        environments: by role name ("actor-3"): variables of its process; a role not in it gets `role_environment`.
        on_tick: is shown all roles' states every 0.25 s. If it raises, the run stops and the error goes on.
        grace: seconds that the roles have to stop in before they are killed.
        functions: by role: "module:function" that plays it.
        policy: how often a role that failed is started again before the run ends.
        silence: seconds without a sign of life after which a role is killed and has failed; 0: never.
    """
    signals = _Signals()
    signals.install()
    program = _Program(assignments, start, environments or {}, grace, functions, policy, silence, signals)
    try:
        program.launch(modules)
        program.watch(on_tick)
    finally:
        program.end()
        signals.restore()
    return program.outcome()


class _Program:
    """The processes of one run, as the launcher sees them."""

    def __init__(
        self,
        assignments: Sequence[Assignment],
        start: Literal["warm", "spawn"],
        environments: Mapping[str, Mapping[str, str]],
        grace: float,
        functions: Mapping[str, str],
        policy: RestartPolicy,
        silence: float,
        signals: _Signals,
    ) -> None:
        run = RunDirectory(assignments[0].run_directory.resolve())
        self._logs, self._status = run.logs, run.status
        self._heartbeats = Heartbeats(silence)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._start = start
        self._signals = signals
        self._heeded = 0  # stop signals acted upon
        self._stopped_by_signal = False  # else it had been stopping already
        requests = [
            RoleRequest(
                each.name,
                functions[each.role],
                pickle.dumps(each),
                dict(environments[each.name]) if each.name in environments else role_environment(each.role),
                str(self._logs / f"{each.name}.log"),
            )
            for each in assignments
        ]
        roles = {each.name: each.role for each in assignments}
        self.hub = Hub(requests, roles, _share_nodes(assignments), grace, policy)
        self._warm: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, psutil.Process] = {}

    def launch(self, modules: Sequence[str]) -> None:
        """Starts the warm process and, while that imports, the nodes."""
        variables = {**NODE_VARIABLES, **local_environment(), "PYTHONPATH": _python_path()}
        address = ""
        if self._start == "warm":
            listener, address = listen()
            with listener:
                self._warm = warm.start(listener, modules, self._logs / "warm.log", {"PYTHONPATH": _python_path()})
        before = {child.pid for child in psutil.Process().children()}
        nodes = list(dict.fromkeys(state.node for state in self.hub.states.values()))
        with _output_to(self._logs / "launchpad.log"):
            _launch_nodes(nodes, self.hub.address, address, variables)
        for child in psutil.Process().children():
            if child.pid not in before and (node := _node_of(child, nodes)):
                self._nodes[node] = child
        for node in set(nodes) - set(self._nodes):
            self.hub.node_ended(node)
        self._signals.install()  # Launchpad's own would kill everything, the launcher included, after ten seconds

    def watch(self, on_tick: Callable[[Mapping[str, RoleState]], None] | None) -> None:
        """Returns when all roles have exited, or should have and didn't."""
        next_tick = next_look = 0.0
        while not self.hub.done:
            self._heed_signals()
            self._check_processes()
            self.hub.poll(TICK / 2)
            if on_tick is not None and time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK
                on_tick(self.hub.states)
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + LOOK
                self._check_heartbeats()
            if self.hub.overdue:
                self.hub.fail("Some roles are still there after the time that they had to stop in.")
                return

    def end(self) -> None:
        """Ends what is left, whatever state it is in."""
        if not self.hub.done and not self.hub.stopping:  # an exception is on its way through
            self.hub.stop("the launcher failed")
            self.watch(None)
        self.hub.dismiss()
        psutil.wait_procs(list(self._nodes.values()), timeout=1.5)
        self.hub.close()
        if self._warm is not None:
            self._warm.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._warm.wait(timeout=warm.GRACE + 0.5)
            self._warm.kill()  # its roles die with it
            self._warm.wait()
        left = [process for node in self._nodes.values() for process in _tree(node)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=2.0)

    def outcome(self) -> Outcome:
        """How it all ended."""
        hub, number = self.hub, self._signals.first
        code = 128 + number if self._stopped_by_signal else 1 if hub.failure else 0
        return Outcome(code, hub.reason or hub.failure.split("\n", 1)[0], hub.failure, tuple(hub.problems))

    def _heed_signals(self) -> None:
        if self._signals.count > self._heeded:
            hurried = self._heeded > 0
            self._heeded = self._signals.count
            name = signal_name(self._signals.first)
            logging.info("%s: asking the roles to stop%s.", name, " at once" if hurried else "")
            self._stopped_by_signal = self._stopped_by_signal or not self.hub.stopping
            self.hub.stop(f"stopped by {name}", HURRIED_GRACE if hurried else None)

    def _check_heartbeats(self) -> None:
        """Kills roles that have said nothing for too long."""
        if self.hub.stopping:
            return
        try:
            status = read_status(self._status)
        except (OSError, ValueError):
            return  # the display says so
        now, clock = time.time(), time.monotonic()
        living = [
            Living(name, now - (clock - state.since))
            for name, state in self.hub.states.items()
            if state.status == "running" and state.role != GATE
        ]
        for name, seconds in self._heartbeats.silent(status, living, now).items():
            self.hub.kill(name, f"gave no sign of life for {seconds:.0f} s and was killed")

    def _check_processes(self) -> None:
        """Notices a warm process or a node that is gone."""
        if self._warm is not None and not self.hub.failure and self._warm.poll() is not None and not self.hub.done:
            code = self._warm.returncode
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            self.hub.fail(f"The warm process {how}, and all roles with it. Its log: {self._logs / 'warm.log'}")
        for node, process in self._nodes.items():
            if _has_ended(process):
                self.hub.node_ended(node)


def _share_nodes(assignments: Sequence[Assignment]) -> dict[str, str]:
    """The node that supervises each role, as Launchpad titles it: "actor/0" is the first of the group "actor"."""
    groups = {each.name: "monitor" if each.role == GATE else each.role for each in assignments}  # a node costs 0.4 s
    return {each.name: f"{groups[each.name]}/{each.index % NODES_PER_GROUP}" for each in assignments}


def _launch_nodes(nodes: Sequence[str], hub: str, warm_address: str, variables: Mapping[str, str]) -> None:
    # Imported late: it takes 0.7 s, in which the warm process already works.
    import launchpad
    from launchpad.nodes.python.local_multi_processing import PythonProcess

    if not flags.FLAGS.is_parsed():  # under pytest, say
        flags.FLAGS(sys.argv[:1])
    flags.FLAGS["lp_termination_notice_secs"].value = -1  # no time limit of its own
    program = launchpad.Program("antiphon")
    for node in sorted(nodes, key=_group_and_index):
        program.add_node(launchpad.PyNode(supervise, node, hub, warm_address), label=_group_and_index(node)[0])
    resources = dict.fromkeys(program.groups, PythonProcess(env=dict(variables)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it drops its Popen objects while their processes run
        launchpad.launch(program, launch_type="local_mp", terminal="current_terminal", local_resources=resources)


def _group_and_index(node: str) -> tuple[str, int]:
    group, _, index = node.rpartition("/")
    return group, int(index)


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Processes started in here write to a file and read nothing: the terminal is the launcher's."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(descriptor) for descriptor in (0, 1, 2)]
    with path.open("ab") as log, open(os.devnull, "rb") as null:
        for descriptor, file in enumerate((null.fileno(), log.fileno(), log.fileno())):
            os.dup2(file, descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in enumerate(saved):
            os.dup2(copy, descriptor)
            os.close(copy)


def _python_path() -> str:
    """Where processes of the program find what this one can import: the repository, and agents from outside."""
    own = [str(Path(__file__).resolve().parents[1])]
    installed = (sys.prefix, sys.base_prefix)
    places = own + [os.path.abspath(place) for place in sys.path if not place.startswith(installed) or place == ""]
    return os.pathsep.join(dict.fromkeys(places))


def _node_of(process: psutil.Process, nodes: Sequence[str]) -> str:
    """The node that a new process is, by its arguments; "" if it has ended already, or is none."""
    deadline = time.monotonic() + _EXEC_SECONDS
    while time.monotonic() < deadline:
        try:
            arguments = process.cmdline()
        except psutil.Error:
            return ""
        if arguments:
            return next((word for word in arguments if word in nodes), "")
        time.sleep(0.001)  # the kernel is still setting up the program that it executes
    return ""


def _has_ended(process: psutil.Process) -> bool:
    try:
        process.wait(timeout=0)
    except psutil.TimeoutExpired:
        return False
    return True


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []
