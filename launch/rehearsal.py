"""What an experiment's parts cost, measured on this machine: its own roles, run in small for half a minute.

One shard, one actor of each kind and the learner run as a real program, with a limiter that holds nobody up. They take
turns: while one works, the others are stopped (SIGSTOP), so that each is measured on a core that it has to itself.
"""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import reverb

from configs.experiment import Experiment
from configs.overrides import apply_overrides
from launch import command_line
from launch.assembly import assemble
from launch.background import Background, said, started
from launch.cost_model import ActorCosts, Costs
from launch.faults import Program
from launch.placement import devices_of
from launch.roles import counts_of
from replay.manifest import describe
from replay.newest import table_state
from replay.server import shard_info

ACTORS = ("actor", "accelerated_actor")
ROUNDS = 3  # turns of each role
SHARE_OF_ACTING = 0.5  # of the time; the learner has the rest
SETTLE = 3.0  # seconds after the first learner step: what is compiled late is compiled then
START_DEADLINE = 300.0  # seconds for the first learner step
LEARNER_DEADLINE = 60.0  # seconds that a turn of the learner is waited for, for a learner step takes what it takes
INFO_TIMEOUT = 5.0
ROOM = 2**30  # bytes of the rehearsal's tables
MOST_ITEMS = 100_000  # in them


class _Reading(NamedTuple):
    """Counters at one moment."""

    time: float
    cpu: Mapping[str, float]  # CPU seconds so far, by process
    inserts: int
    samples: int
    network: int  # bytes over loopback
    publications: int  # of weights


def small(experiment: Experiment) -> list[str]:
    """What turns an experiment into its rehearsal, as for --set."""
    parts, learner = assemble(experiment), experiment.learner
    batch = learner.batch_size // learner.processes  # the part that one learner process has
    room = max(batch, min(MOST_ITEMS, int(ROOM / max(parts.layout.item_nbytes, 1))))
    size = room if parts.plan.queue else min(room, max(batch, parts.agent.replay.max_size))
    devices = devices_of(experiment, "learner", 0)
    return [
        "topology.shards=1",
        f"topology.actors={min(1, experiment.topology.actors)}",
        f"topology.accelerated_actors={min(1, experiment.topology.accelerated_actors)}",
        "topology.evaluators=0",
        f"devices.actor={_list(experiment.devices.actor[:1])}",
        f"devices.learner={_list(devices)}",
        f"learner.batch_size={batch}",
        "learner.processes=1",
        "learner.max_policy_lag=0",  # what a queue has kept for the learner's turn is old
        f"learner.checkpoint_period={10 * START_DEADLINE}",
        "shard.checkpoint_period=0",
        f"agent_config.replay.max_size={size}",
        "agent_config.replay.samples_per_insert=0",
        "supervision.silence=0",  # who is stopped here isn't dead
        "run.target_return=inf",
        "run.environment_steps=0",
        "run.learner_steps=0",
        "run.seconds=0",
        *([] if parts.plan.queue else [f"agent_config.replay.min_size={batch}"]),
    ]


def _list(ids: Sequence[int]) -> str:
    return f"[{','.join(map(str, ids))}]"


def rehearse(
    config: str, overrides: Sequence[str], seconds: float = 24.0, say: Callable[[str], None] = lambda _: None
) -> Costs:
    """Measures an experiment's parts.

    Args:
        config: the preset.
        overrides: as for --set.
        seconds: how long is measured, starts left out.
        say: told what is going on, in a line each.

    Raises:
        ValueError: the experiment can't run; the message names the field.
        RuntimeError: it ended, or a role did nothing in its turns; the message holds what it said.
    """
    experiment = command_line.experiment_of(config, overrides)
    settings = small(experiment)
    with tempfile.TemporaryDirectory(prefix="plan-") as scratch:
        folder = Path(scratch)
        with started(config, [*overrides, *settings, f"run.directory={folder}"], folder) as background:
            say("starting one shard, one actor of each kind, and the learner")
            rehearsal = _Rehearsal(apply_overrides(experiment, settings), background, folder)
            rehearsal.wait_until_it_learns()
            say(f"measuring for about {seconds:.0f} s")
            return rehearsal.measure(seconds)


class _Rehearsal:
    """A program whose roles work in turns."""

    def __init__(self, experiment: Experiment, background: Background, folder: Path) -> None:
        self._experiment, self._background, self._folder = experiment, background, folder
        self._parts = assemble(experiment)
        self._program = Program(background.run, seed=0)
        self._pids: dict[str, int] = {}
        self._batch = experiment.learner.batch_size

    def wait_until_it_learns(self) -> None:
        """Until all roles work and have settled."""
        deadline = time.monotonic() + START_DEADLINE
        while True:
            status = self._program.status()
            if status is not None and status.state.learner_steps and status.state.environment_steps:
                break
            self._check_runs()
            if time.monotonic() > deadline:
                raise RuntimeError(f"No learner step within {START_DEADLINE:.0f} s.\n{said(self._folder)}")
            time.sleep(0.2)
        time.sleep(SETTLE)
        self._pids = {name: self._program.pid(name) for name in self._program.roles()}
        self._address = self._program.address("replay-0")
        self._client = reverb.Client(self._address)

    def measure(self, seconds: float) -> Costs:
        """The costs, after the roles' turns."""
        actors = [f"{role}-0" for role in ACTORS if counts_of(self._experiment)[role]]
        turn = seconds / ROUNDS
        acting: dict[str, list[tuple[_Reading, _Reading]]] = {name: [] for name in actors}
        learning: list[tuple[_Reading, _Reading]] = []
        first_steps = self._environment_steps()
        whole = self._read()
        for _ in range(ROUNDS):
            for name in actors:
                with self._alone(name):
                    acting[name].append(self._during(turn * SHARE_OF_ACTING / len(actors)))
            with self._alone("learner-0"):
                learning.append(self._while_it_learns(turn * (1 - SHARE_OF_ACTING)))
        with self._stopped([*actors, "learner-0"]):
            time.sleep(1.5)  # until the last records are counted
            steps, end = self._environment_steps() - first_steps, self._read()
        inserts = end.inserts - whole.inserts
        if not steps or not inserts:
            raise RuntimeError(f"Nothing was acted or written.\n{said(self._folder)}")
        items = inserts / steps
        costs = {name: _sum(turns) for name, turns in acting.items()}
        learner = _sum(learning)
        learner_steps = learner.samples / self._batch
        if not learner_steps:
            raise RuntimeError(f"The learner took nothing in its turns: measure longer.\n{said(self._folder)}")
        written = sum(each.inserts for each in costs.values())
        weights = sum(leaf.nbytes for leaf in describe(self._parts.params_structure()))
        return Costs(
            actors={
                name.rpartition("-")[0]: ActorCosts(
                    cpu=each.cpu[name] / (each.inserts / items), rate=each.inserts / items / each.time, items=items
                )
                for name, each in costs.items()
            },
            learner_cpu=learner.cpu["learner-0"] / learner_steps,
            learner_rate=learner_steps / learner.time,
            insert_cpu=sum(each.cpu["replay-0"] for each in costs.values()) / written,
            sample_cpu=learner.cpu["replay-0"] / learner.samples,
            insert_bytes=sum(each.network for each in costs.values()) / written,
            sample_bytes=(learner.network - weights * learner.publications) / learner.samples,
            weights_bytes=float(weights),
            monitor_cpu=(end.cpu["monitor-0"] - whole.cpu["monitor-0"]) / (end.time - whole.time),
        )

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with self._stopped([each for each in self._pids if each.startswith((*ACTORS, "learner"))]):
            time.sleep(0.5)  # until what is under way is over
            os.kill(self._pids[name], signal.SIGCONT)
            yield

    @contextlib.contextmanager
    def _stopped(self, names: Sequence[str]) -> Iterator[None]:
        for name in names:
            os.kill(self._pids[name], signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pids[name], signal.SIGCONT)

    def _during(self, seconds: float) -> tuple[_Reading, _Reading]:
        before = self._read()
        time.sleep(seconds)
        return before, self._read()

    def _while_it_learns(self, seconds: float) -> tuple[_Reading, _Reading]:
        """So long, or as long as a queue holds; some learner steps at least, however long they take."""
        before = self._read()
        deadline = before.time + LEARNER_DEADLINE
        while True:
            time.sleep(0.05)
            self._check_runs()
            now, size = self._read(), shard_info(self._address, INFO_TIMEOUT).size
            enough = now.time - before.time >= seconds and now.samples - before.samples >= 4 * self._batch
            if enough or now.time > deadline or (self._parts.plan.queue and size < 2 * self._batch):
                return before, now

    def _read(self) -> _Reading:
        self._check_runs()
        info = shard_info(self._address, INFO_TIMEOUT)
        cpu = {}
        for name, pid in self._pids.items():
            times = psutil.Process(pid).cpu_times()
            cpu[name] = times.user + times.system
        network = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        publications = table_state(self._client).inserts
        return _Reading(time.monotonic(), cpu, info.inserts, info.samples, network, publications)

    def _environment_steps(self) -> int:
        status = self._program.status()
        return status.state.environment_steps if status else 0

    def _check_runs(self) -> None:
        if self._background.process.poll() is not None:
            raise RuntimeError(f"The program ended while it was measured.\n{said(self._folder)}")


def _sum(turns: Sequence[tuple[_Reading, _Reading]]) -> _Reading:
    """What went by in all turns together."""
    names = turns[0][0].cpu
    return _Reading(
        sum(end.time - begin.time for begin, end in turns),
        {name: sum(end.cpu[name] - begin.cpu[name] for begin, end in turns) for name in names},
        sum(end.inserts - begin.inserts for begin, end in turns),
        sum(end.samples - begin.samples for begin, end in turns),
        sum(end.network - begin.network for begin, end in turns),
        sum(end.publications - begin.publications for begin, end in turns),
    )
