"""The accelerated actor: threads that take turns on one device, each with asynchronous environments of its own.

While the device computes what one thread's environments do next, those of the others step. Each thread has a writing
thread behind it, so that nothing that happens on the way to the learner holds up the acting.
"""

import collections
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from agents.agent import Fleet, Params
from agents.signatures import example_timestep
from configs.experiment import Experiment
from launch.actor import wait_for_weights
from launch.assembly import Parts, assemble, key_of
from launch.asynchronous_policy import Policy, init_state, make_policy
from launch.environments.factory import make_asynchronous
from launch.handoff import Handoff, Moment, write_blocks
from launch.roles import Assignment
from replay.asynchronous_writer import AsynchronousWriter
from replay.background import Threads
from replay.metrics import MetricsWriter
from replay.variables import VariableFetcher

ACCELERATED_STREAM = 4  # sets these actors' random numbers apart from all others
END_SECONDS = 3.0  # that the threads have to end


class Weights(NamedTuple):
    """The newest weights that are on the device."""

    params: Params
    version: int


class SharedWeights:
    """Fetched once for all threads, put on the device once."""

    def __init__(self, fetcher: VariableFetcher) -> None:
        self._fetcher = fetcher
        self._lock = threading.Lock()
        self._weights: Weights | None = None

    def newest(self) -> Weights:
        """The newest ones; while another thread puts newer ones on the device, those before. Waits only at first."""
        if self._lock.acquire(blocking=self._weights is None):
            try:
                newest = self._fetcher.newest()
                if newest is not None:
                    self._weights = Weights(jax.device_put(newest[0]), newest[1])
            finally:
                self._lock.release()
        assert self._weights is not None, "the first weights have been waited for"
        return self._weights


def fleet_of(experiment: Experiment, actor: int, thread: int) -> Fleet:
    """A thread's environments among all: those of the CPU actors come first."""
    topology, config = experiment.topology, experiment.accelerated
    return Fleet(
        actor * config.threads + thread,
        topology.accelerated_actors * config.threads,
        config.environments,
        before=topology.actors * experiment.environment.per_actor,
    )


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Acts until `stop` is set."""
    experiment, addresses = assignment.experiment, assignment.addresses
    parts = assemble(experiment)
    own_shard = assignment.index % len(addresses)
    metrics = MetricsWriter(addresses, assignment.role, assignment.index)
    fetcher = VariableFetcher(addresses[own_shard], parts.params_structure(), period_s=experiment.actor.fetch_period)
    try:
        fetcher.start()
        metrics.write({"state": f"waiting: weights from {addresses[own_shard]}"})
        version = wait_for_weights(fetcher, addresses[own_shard], stop)
        if version is not None:
            _act(assignment, version, parts, SharedWeights(fetcher), fetcher, metrics, stop)
    finally:
        metrics.write({"state": "stopping"})
        fetcher.close()
        metrics.close(timeout=1.0)
    return ""


def _act(
    assignment: Assignment,
    first_version: int,
    parts: Parts,
    weights: SharedWeights,
    fetcher: VariableFetcher,
    metrics: MetricsWriter,
    stop: threading.Event,
) -> None:
    config = assignment.experiment.accelerated
    policy = make_policy(parts.agent, config.environments)
    actors = [
        ActingThread(assignment, first_version, parts, policy, weights, stop, thread)
        for thread in range(config.threads)
    ]
    actors[0].compile()
    logging.info("Acting with the weights of learner step %d, on %s.", weights.newest().version, jax.devices()[0])
    threads = Threads(stop.set)
    for actor in actors:
        for function, name in ((actor.act, "act"), (actor.write, "write")):
            threads.start(function, f"{name}-{actor.thread}")
    period = assignment.experiment.actor.report_period
    try:
        while not stop.wait(period):
            metrics.write(_report(actors, fetcher, weights.newest().version))
        threads.join(END_SECONDS)
        for actor in actors:
            if actor.failure is not None:
                raise actor.failure
        metrics.write(_report(actors, fetcher, weights.newest().version))  # what came since the last record
    finally:
        threads.end(END_SECONDS)
        logging.info("%s", "; ".join(f"thread {actor.thread}: {actor.writer.counts}" for actor in actors))


class ActingThread:
    """What one acting thread and the writing thread behind it do."""

    def __init__(
        self,
        assignment: Assignment,
        first_version: int,
        parts: Parts,
        policy: Policy,
        weights: SharedWeights,
        stop: threading.Event,
        thread: int,
    ) -> None:
        experiment, config = assignment.experiment, assignment.experiment.accelerated
        self.thread = thread
        self.failure: Exception | None = None
        self.steps = 0  # environment steps that were written
        self.seconds_environments = self.seconds_device = 0.0  # waited for, by the acting thread
        self._config, self._parts, self._policy, self._weights, self._stop = config, parts, policy, weights, stop
        numbers = (experiment.run.seed, ACCELERATED_STREAM, assignment.index, thread, first_version)
        fleet = fleet_of(experiment, assignment.index, thread)
        self._state = init_state(parts.agent, key_of(*numbers), fleet)
        self._environments = make_asynchronous(
            experiment.environment, config.environments, config.batch_size, numbers, config.environment_threads
        )
        # A block is one round of all environments. A quarter of an item of each may wait: enough for a burst of items,
        # and not more, for what waits grows old.
        self.handoff = Handoff(
            moments=config.environments // config.batch_size, blocks=max(2, parts.agent.replay.sequence_length // 4)
        )
        self.writer = AsynchronousWriter(
            assignment.addresses,
            parts.layout,
            parts.agent.replay,
            config.environments,
            initial_priorities=parts.agent.initial_priorities,
            start=assignment.index * config.threads + thread,
            items_in_flight=experiment.actor.items_in_flight,
            items_per_shard=experiment.actor.items_per_shard,
            balanced=assignment.balanced,
            stop=stop,
        )
        self._episodes: collections.deque[list[float]] = collections.deque()

    def compile(self) -> None:
        """Calls the policy once, so that the threads find it compiled."""
        count = self._config.batch_size
        timestep = example_timestep(self._parts.environment, count)
        state = jax.tree.map(jnp.copy, self._state)
        params, ids = self._weights.newest().params, np.arange(count, dtype=np.int32)
        jax.block_until_ready(self._policy(params, state, timestep, ids))

    def act(self) -> None:
        """The acting thread."""
        self._watched(self._act, self._environments.close)

    def write(self) -> None:
        """The writing thread."""
        self._watched(self._write, lambda: self.writer.close(timeout_s=2.0))

    def episodes(self) -> list[list[float]]:
        """[return, length] of the episodes that finished since the last call."""
        return [self._episodes.popleft() for _ in range(len(self._episodes))]

    def _act(self) -> None:
        environments, clock = self._environments, time.perf_counter
        environments.start()
        began = clock()
        while not self._stop.is_set():
            timestep, ids = environments.receive()
            received = clock()
            weights = self._weights.newest()
            output, memory, self._state = self._policy(weights.params, self._state, timestep, ids)
            action = np.asarray(output.action)
            acted = clock()
            self.seconds_environments += received - began
            self.seconds_device += acted - received
            environments.send(action, ids)
            self.handoff.put(Moment(ids, timestep, output, memory, weights.version), self._stop)
            self._episodes.extend([episode.return_, episode.length] for episode in environments.episodes())
            began = clock()

    def _write(self) -> None:
        write_blocks(self.handoff, self.writer, self._config.environments, self._stop, self._count)

    def _count(self, steps: int) -> None:
        self.steps += steps

    def _watched(self, function: Callable[[], None], close: Callable[[], None]) -> None:
        """Runs a thread to its end. One that fails ends the role."""
        try:
            try:
                function()
            finally:
                close()
        except Exception as error:
            self.failure = self.failure or error
            self._stop.set()


def _report(actors: list[ActingThread], fetcher: VariableFetcher, version: int) -> dict[str, Any]:
    counts = [actor.writer.counts for actor in actors]
    return {
        "state": "running",
        "environment_steps": sum(actor.steps for actor in actors),
        "episodes": [episode for actor in actors for episode in actor.episodes()],
        "version": version,
        "weights_delay_s": fetcher.delay_s,
        "items_created": sum(count.items_created for count in counts),
        "items_unconfirmed": sum(count.items_unconfirmed for count in counts),
        "items_skipped": sum(count.items_skipped for count in counts),
        "items_lost": sum(count.items_lost for count in counts),
        "seconds_waiting": sum(actor.handoff.seconds_waited for actor in actors) / len(actors),
        "seconds_environments": sum(actor.seconds_environments for actor in actors) / len(actors),
        "seconds_device": sum(actor.seconds_device for actor in actors) / len(actors),
    }
