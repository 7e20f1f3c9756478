"""Runs a program, does it harm, and says how it got over that. For an agent of your own, too.

python -m launch.chaos --config=apex_cartpole --seed=0 --minutes=5
python -m launch.chaos --config=apex_cartpole --rounds=20 --faults=kill
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from absl import app, flags
from rich.console import Console
from rich.table import Table

from launch import command_line
from launch.background import END_DEADLINE, said, started
from launch.chaos_signal import CHAOS_VARIABLE
from launch.faults import FAULTS, Program
from launch.run_state import RunState

SILENCE = 15.0  # seconds; a role that is stopped for good is found after these
# So that each fault is met by the first pause, however many came before, and the run doesn't end for their number.
OVERRIDES = (
    "supervision.restarts=100000",
    "supervision.window=1",
    f"supervision.silence={SILENCE:g}",
    "shard.checkpoint_period=10",
    "learner.checkpoint_period=10",
    "run.target_evaluations=1000000",
)
USAGE = (
    "       --seed=N      of the order of faults and roles",
    "       --minutes=M   how long faults are injected (5)",
    "       --rounds=N    instead of --minutes: each fault on each role so often",
    "       --faults=...  a list of " + ", ".join(FAULTS) + "; all of them if left out:",
    *(f"                     {name:<8} {fault.what}" for name, fault in FAULTS.items()),
    "       --roles=...   a list such as actor,learner or actor-0; all roles if left out",
    "",
    "Checkpoints are taken every 10 s, and a role is taken for dead after 15 s of silence, if --set says nothing else.",
    "Exit code 0: no hang, no orphan, nothing lost beyond a checkpoint's interval; 1: something of that; 2: bad input.",
)
DEADLINE = 90.0  # seconds for a role to work again, after which it is called a hang
START_DEADLINE = 300.0  # seconds for the first learner step
CALM = (1.0, 4.0)  # seconds between two faults, drawn at random


@dataclasses.dataclass(frozen=True, slots=True)
class Injection:
    """One fault, and what became of it."""

    fault: str
    role: str
    recovery: float | None  # seconds until the role worked again; None: it didn't
    learner_steps_lost: int = 0
    items_lost: int = 0

    @property
    def kind(self) -> str:
        """Of the role."""
        return self.role.rpartition("-")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a program got over, and what not."""

    injections: Sequence[Injection]
    problems: Sequence[str]
    learner_interval: float  # learner steps in one checkpoint interval
    best: float | None  # mean return of the best evaluation

    @property
    def holds(self) -> bool:
        """Whether nothing of what must not be was."""
        return not self.problems

    def table(self) -> Table:
        """What each fault cost, by kind of role."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("fault", "role"):
            table.add_column(column)
        for column in ("times", "s until it worked: median", "longest", "steps lost: most", "items lost: most"):
            table.add_column(column, justify="right")
        groups: dict[tuple[str, str], list[Injection]] = collections.defaultdict(list)
        for injection in self.injections:
            groups[injection.fault, injection.kind].append(injection)
        for (fault, kind), group in sorted(groups.items()):
            times = [each.recovery for each in group if each.recovery is not None] or [math.inf]
            steps, items = max(each.learner_steps_lost for each in group), max(each.items_lost for each in group)
            seconds = f"{statistics.median(times):.1f}", f"{max(times):.1f}"
            table.add_row(fault, kind, str(len(group)), *seconds, f"{steps:,}", f"{items:,}")
        return table

    def lines(self) -> Iterator[str]:
        """What is to be said of all together, the worst last."""
        yield f"{len(self.injections)} faults; about {self.learner_interval:,.0f} learner steps between two checkpoints"
        if self.best is not None:
            yield f"best evaluation {self.best:,.1f}"
        yield from (f"PROBLEM: {problem}" for problem in self.problems)
        yield "held: no hang, no orphan, nothing lost beyond a checkpoint interval" if self.holds else "did NOT hold"


class Chaos:
    """Injects faults into one program, one after the other."""

    def __init__(self, process: "subprocess.Popen[bytes]", program: Program, interval: float) -> None:
        """`interval` is that of the learner's checkpoints, in seconds."""
        self._process, self._program, self._interval = process, program, interval
        self._seen: dict[int, float] = {}  # every process of the program, and when it was created
        self._rates: list[float] = []
        self.injections: list[Injection] = []
        self.problems: list[str] = []

    def state(self) -> RunState:
        """The newest one."""
        status = self._program.status()
        return status.state if status else RunState()

    def wait_until_it_learns(self) -> bool:
        """Whether the first learner steps came."""
        deadline = time.monotonic() + START_DEADLINE
        while time.monotonic() < deadline and self._process.poll() is None:
            if self.state().learner_steps > 0 and self.state().environment_steps > 0:
                return True
            time.sleep(0.5)
        self.problems.append("it never began to learn")
        return False

    def inject(self, fault: str, role: str) -> None:
        """Does it, waits until all works again, and notes what it cost."""
        self._look_at_processes()
        before, restored_before = self.state(), self._lost_items()
        self._rates.append(before.learner_steps_per_second)
        began = time.time()
        FAULTS[fault].inject(self._program, role)
        recovered = self._wait_for(role, began) if FAULTS[fault].ends_process else self._wait_for_moves(time.time())
        recovery = None if recovered is None else recovered - began
        if recovery is None:
            self.problems.append(f"{role} did not work again within {DEADLINE:.0f} s of {fault}")
        self._wait_for_moves(time.time())
        self._rates.append(self.state().learner_steps_per_second)
        lost_steps = 0
        if role.startswith("learner-") and FAULTS[fault].ends_process:
            lost_steps = max(0, before.learner_steps - self._program.restored_step())
            allowed = self._allowed_steps * (2 if fault == "damage" else 1)  # the newest checkpoint was taken from it
            if lost_steps > allowed:
                self.problems.append(f"{lost_steps} learner steps were lost by {fault}, and {allowed:.0f} may be")
        items = int(self._lost_items() - restored_before)
        self.injections.append(Injection(fault, role, recovery, lost_steps, items))
        said = "never" if recovery is None else f"after {recovery:.1f} s"
        lost = "".join(f", {n:,} {what} lost" for n, what in ((lost_steps, "learner steps"), (items, "items")) if n)
        print(f"{fault:<8} {role:<12} works again {said}{lost}", flush=True)

    @property
    def _allowed_steps(self) -> float:
        """Learner steps in one interval of checkpoints, and in the second between two looks of the monitor."""
        return self.learner_rate * (self._interval * 1.5 + 3.0)

    @property
    def learner_rate(self) -> float:
        """The largest seen so far, a second."""
        return max(self._rates, default=0.0)

    def _lost_items(self) -> float:
        return self.state().counts.get("replay.items_lost", 0.0)

    def _wait_for(self, role: str, after: float) -> float | None:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline and self._process.poll() is None:
            working = self._program.working_since(role, after)
            if working is not None:
                return working
            self._look_at_processes()
            time.sleep(0.1)
        return None

    def _wait_for_moves(self, after: float) -> float | None:
        """When actors and learner are seen to have gone on, by a status later than a time."""
        deadline = time.monotonic() + DEADLINE
        first: tuple[int, int] | None = None
        while time.monotonic() < deadline and self._process.poll() is None:
            status = self._program.status()
            if status is not None and status.time > after:
                moves = status.state.environment_steps, status.state.learner_steps
                if first is None:
                    first = moves
                elif all(now > then for now, then in zip(moves, first, strict=True)):
                    return time.time()
                elif moves[1] < first[1]:  # the learner went back to its checkpoint
                    first = moves
            time.sleep(0.1)
        self.problems.append(f"nothing moved for {DEADLINE:.0f} s")
        return None

    def _look_at_processes(self) -> None:
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        for child in children:
            try:
                self._seen[child.pid] = child.create_time()
            except psutil.NoSuchProcess:
                continue

    def end(self) -> None:
        """Ends the program as Ctrl-C does, and looks for what is left."""
        self._look_at_processes()
        if self._process.poll() is not None:
            self.problems.append(f"the program had ended by itself, with exit code {self._process.returncode}")
            return
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(timeout=END_DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.problems.append(f"it did not end within {END_DEADLINE:.0f} s of Ctrl-C")
            return
        if code != 130:
            self.problems.append(f"exit code {code} after Ctrl-C, want 130")
        time.sleep(1.0)
        self.problems.extend(f"process {pid} is left" for pid, created in self._seen.items() if _is_left(pid, created))


def _is_left(pid: int, created: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def plan(program: Program, faults: Sequence[str], roles: Sequence[str], rounds: int) -> Iterator[tuple[str, str]]:
    """Fault and role, each pair once a round, in a random order; `rounds` of 0: without end."""
    pairs = [
        (fault, role)
        for fault, role in itertools.product(faults, program.roles())
        if role.rpartition("-")[0] in FAULTS[fault].kinds
        and (not roles or role in roles or role.rpartition("-")[0] in roles)
    ]
    for _ in range(rounds) if rounds else itertools.count():
        yield from program.random.sample(pairs, len(pairs))


def run(
    config: str,
    overrides: Sequence[str],
    *,
    seed: int,
    minutes: float,
    rounds: int,
    faults: Sequence[str],
    roles: Sequence[str],
) -> Verdict:
    """Runs the whole thing."""
    settings = [*OVERRIDES, *overrides]  # of two for one field the last wins
    experiment = command_line.experiment_of(config, settings)
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        with started(config, settings, Path(scratch), {CHAOS_VARIABLE: "1"}) as background:
            process, program = background.process, Program(background.run, seed)
            chaos = Chaos(process, program, experiment.learner.checkpoint_period)
            if chaos.wait_until_it_learns():
                end = time.monotonic() + 60 * minutes
                with contextlib.suppress(KeyboardInterrupt):  # then what there is so far is told
                    for fault, role in plan(program, faults, roles, rounds):
                        if process.poll() is not None or (not rounds and time.monotonic() >= end):
                            break
                        chaos.inject(fault, role)
                        time.sleep(program.random.uniform(*CALM))
            state = chaos.state()
            chaos.end()
        if chaos.problems:
            print(said(Path(scratch)), file=sys.stderr)
    best = state.best_evaluation.mean if state.best_evaluation else None
    interval = chaos.learner_rate * experiment.learner.checkpoint_period
    return Verdict(chaos.injections, chaos.problems, interval, best)


def main(argv: Sequence[str]) -> int:
    """Checks, runs, and says."""
    values = flags.FLAGS
    unknown = [name for name in values.faults if name not in FAULTS]
    if unknown:
        print(f"--faults={unknown[0]} is no fault. There are: {', '.join(FAULTS)}.", file=sys.stderr)
        return 2
    try:
        verdict = run(
            values.config, [*values.set, *argv[1:]], seed=values.seed, minutes=values.minutes, rounds=values.rounds,
            faults=values.faults or list(FAULTS), roles=values.roles,
        )  # fmt: skip
    except (ValueError, ImportError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1 if isinstance(error, RuntimeError) else 2
    console = Console()
    console.print(verdict.table())
    for line in verdict.lines():
        console.print(line, highlight=False, markup=False)
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(command_line.help_text("launch.chaos", __doc__, USAGE))
        sys.exit(0)
    command_line.define_flags()
    flags.DEFINE_integer("seed", 0, "Of the order of faults and roles.")
    flags.DEFINE_float("minutes", 5.0, "How long faults are injected.")
    flags.DEFINE_integer("rounds", 0, "Each fault on each role so often; 0: as long as --minutes says.")
    flags.DEFINE_list("faults", [], "Which ones.")
    flags.DEFINE_list("roles", [], "On which roles.")
    app.run(main, flags_parser=command_line.parse)
