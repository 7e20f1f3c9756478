"""The monitor: collects every role's metrics, writes the run's files once a second, and says when the run is over."""

import concurrent.futures
import os
import threading
import time
from collections.abc import Sequence

from absl import logging

from launch.aggregate import Aggregate
from launch.ending import TargetWatch, end_reason, limits_of
from launch.roles import Assignment
from launch.run_directory import RunDirectory
from launch.run_files import CurveDrawer, RunFiles, read_rows
from launch.run_state import RunState, RunStatus, ShardStatus, read_status
from launch.waits import advise, first_words_missing, stale_weights, who_waits
from replay.metrics import MetricsReader, Record
from replay.server import shard_info

PERIOD = 1.0  # seconds between two looks
PATIENCE = 10.0  # seconds between two words on what is waited for
STALL = 30.0  # seconds without any step after which advice is given
CURVE_PERIOD = 20.0  # seconds between two pictures
SHARD_TIMEOUT = 2.0  # seconds for a shard's answer
MOST_ASKED = 16  # shards asked at the same time
MOST_READS = 5  # in one look: a reader takes a bounded number of records at once
ENOUGH_READ = 1000  # records of one read after which there may be more


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Watches the run until a limit of `run` is reached, and says which; "" when `stop` was set before."""
    monitor = Monitor(assignment)
    logging.info("Watching %s.", assignment.run_directory)
    try:
        while not stop.wait(PERIOD):
            reason = monitor.look()
            if reason:
                logging.info("The run is over: %s.", reason)
                return reason
        monitor.end()
        return ""
    finally:
        monitor.close()


class Monitor:
    """One look a second at everything, put into the run's files."""

    def __init__(self, assignment: Assignment) -> None:
        experiment, topology = assignment.experiment, assignment.experiment.topology
        self._preset = experiment.name
        self._replay = experiment.agent_config.replay
        self._publish_period = experiment.learner.publish_period
        self._limits = limits_of(experiment.run)
        self._target = TargetWatch(
            self._limits.target_return, experiment.run.target_evaluations, experiment.evaluator.episodes
        )
        directory = RunDirectory(assignment.run_directory)
        self._files = RunFiles(directory)
        earlier = _read_earlier(directory)
        self._started = earlier.started if earlier else time.time()
        names = [
            *(f"replay-{index}" for index in range(len(assignment.addresses))),
            *(f"actor-{index}" for index in range(topology.actors)),
            *(f"accelerated_actor-{index}" for index in range(topology.accelerated_actors)),
            *(f"learner-{index}" for index in range(experiment.learner.processes)),
            *(f"evaluator-{index}" for index in range(topology.evaluators)),
            assignment.name,
        ]
        self._aggregate = Aggregate(names, len(assignment.addresses), self._started)
        self._name, self._index = assignment.role, assignment.index
        self._drawer = CurveDrawer(directory.curve, self._limits.target_return, CURVE_PERIOD)
        if earlier:
            self._aggregate.restore(earlier.state, earlier.saved)
            for row in read_rows(directory.metrics):
                self._drawer.curve.add(row)
            logging.info("Going on at %d environment steps with %s.", earlier.state.environment_steps, directory.path)
        self._reader = MetricsReader(assignment.addresses)
        self._shards = _ShardAsker(assignment.addresses)
        self._moved_at, self._position = time.monotonic(), (-1, -1)
        self._say_at = time.monotonic() + PATIENCE
        self._advice: tuple[str, ...] = ()
        self._alarms: tuple[str, ...] = ()
        # Items with their shards, that were spoken of.
        self._lost = earlier.state.counts.get("replay.items_lost", 0.0) if earlier else 0.0

    def look(self) -> str:
        """Takes in what is new and writes it down; why the run is over, "" while it goes on."""
        return self._look(ended=False)

    def end(self) -> None:
        """The last look at a run that was stopped."""
        self._look(ended=True)

    def _look(self, ended: bool) -> str:
        now = self._take_in(timeout=0.5 if ended else 1.0)
        state = self._aggregate.state(now)
        returns, evaluations = self._aggregate.take_news()
        for evaluation in evaluations:
            self._target.add(evaluation)
        reason = self._target.reason or end_reason(state, self._limits)
        waits = () if ended else who_waits(state, now)
        if not ended:
            self._watch(state, now, waits)
        report = self._report(state, now, waits, ended=ended or bool(reason), reason=reason)
        self._drawer.curve.add(self._files.write(report, returns, evaluations))
        if report.ended:
            self._drawer.draw_last(title_of(report))
        else:
            self._drawer.draw_if_due(title_of(report))
        return reason

    def close(self) -> None:
        """Leaves the shards and closes the files."""
        self._shards.close()
        self._reader.close(timeout=0.5)
        self._files.close()

    def _take_in(self, timeout: float) -> float:
        """Reads all records and the shards' answers. Returns the time, seconds since the epoch."""
        for _ in range(MOST_READS):
            records = self._reader.read(timeout_s=timeout)
            self._aggregate.add(records, time.time())
            if len(records) < ENOUGH_READ:
                break
        now = time.time()
        for shard in self._shards.answers():
            self._aggregate.set_shard(shard, now)
        own = Record(role=self._name, index=self._index, time=now, values={"state": "running", "pid": os.getpid()})
        self._aggregate.add([own], now)
        self._aggregate.mark(now)
        return now

    def _report(self, state: RunState, now: float, waits: tuple[str, ...], *, ended: bool, reason: str) -> RunStatus:
        return RunStatus(
            preset=self._preset,
            started=self._started,
            time=now,
            state=state,
            limits=self._limits,
            waits=() if ended else (*self._alarms, *waits),
            advice=self._advice,
            ended=ended,
            reason=reason,
            saved=self._aggregate.save(),
        )

    def _watch(self, state: RunState, now: float, waits: tuple[str, ...]) -> None:
        """Says every 10 s how it goes, and what is wrong when nothing has moved for long."""
        clock, position = time.monotonic(), (state.environment_steps, state.learner_steps)
        if position != self._position:
            self._moved_at, self._position, self._advice = clock, position, ()
        still = clock - self._moved_at
        if still >= STALL:
            self._advice = advise(state, self._replay)
        self._alarms = stale_weights(state, self._publish_period, now)
        lost = state.counts["replay.items_lost"]
        if lost > self._lost:
            logging.warning(
                "A shard began anew: about %d items are lost, inserted since its checkpoint.", lost - self._lost
            )
        self._lost = lost
        if clock < self._say_at:
            return
        self._say_at = clock + PATIENCE
        missing = first_words_missing(state)
        logging.info(
            "%d environment steps (%.0f/s), %d learner steps (%.1f/s), return %s. %s",
            state.environment_steps, state.environment_steps_per_second, state.learner_steps,
            state.learner_steps_per_second,
            "of no episode yet" if state.training_return is None else f"{state.training_return:.1f}",
            "; ".join((*([f"Waiting: {missing}"] if missing else ()), *waits)),
        )  # fmt: skip
        for line in self._alarms:
            logging.warning("Stale weights: %s", line)
        for line in self._advice:
            logging.warning("Nothing has moved for %.0f s. %s", still, line)


class _ShardAsker:
    """Asks each shard how it stands, about once a second, without waiting for one that doesn't answer."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._pool = concurrent.futures.ThreadPoolExecutor(min(len(addresses), MOST_ASKED), "shard-info")
        self._asked = [self._ask(index) for index in range(len(addresses))]

    def _ask(self, index: int) -> "concurrent.futures.Future[ShardStatus]":
        return self._pool.submit(_ask_shard, index, self._addresses[index])

    def answers(self) -> list[ShardStatus]:
        """What was answered since the last call; asks those shards again."""
        done = [index for index, future in enumerate(self._asked) if future.done()]
        answers = [self._asked[index].result() for index in done]
        for index in done:
            self._asked[index] = self._ask(index)
        return answers

    def close(self) -> None:
        """Asks no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _ask_shard(index: int, address: str) -> ShardStatus:
    try:
        info = shard_info(address, SHARD_TIMEOUT)
    except Exception as error:  # whatever it is: it is shown, and the other shards go on
        return ShardStatus(index=index, error=" ".join(str(error).split()) or type(error).__name__)
    return ShardStatus(
        index=index,
        size=info.size,
        max_size=info.max_size,
        inserts=info.inserts,
        samples=info.samples,
        blocked=info.blocked,
    )


def _read_earlier(directory: RunDirectory) -> RunStatus | None:
    """What a monitor before this one left."""
    try:
        return read_status(directory.status)
    except ValueError as error:
        logging.error("Starting the totals from zero: %s", error)
        return None


def title_of(report: RunStatus) -> str:
    """The learning curve's title: which run, and how far it came."""
    state = report.state
    parts = [report.preset]
    if state.best_evaluation is not None:
        parts.append(f"best evaluation {state.best_evaluation.mean:.1f}")
    elif state.training_return is not None:
        parts.append(f"training return {state.training_return:.1f}")
    minutes, seconds = divmod(int(state.elapsed), 60)
    parts += [f"{state.environment_steps:,} environment steps", f"{minutes} min {seconds} s"]
    return "  ·  ".join(parts)
