"""The CPU actor: steps its environments with the newest weights and writes what happens into replay."""

import threading
import time
from typing import Any

import jax
import numpy as np
from absl import logging

from agents.agent import Fleet
from agents.rows import row_of
from configs.experiment import Experiment
from launch.assembly import Parts, assemble, key_of
from launch.environments.factory import make_environments
from launch.environments.protocol import Environments
from launch.roles import Assignment
from replay.metrics import MetricsWriter
from replay.variables import VariableFetcher
from replay.writer import ReplayWriter

ACTOR_STREAM = 1  # sets the actors' random numbers apart from the learner's and the evaluator's
PATIENCE = 10.0  # seconds between two words on what is waited for


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Acts until `stop` is set."""
    experiment = assignment.experiment
    parts = assemble(experiment)
    addresses = assignment.addresses
    own_shard = assignment.index % len(addresses)
    metrics = MetricsWriter(addresses, assignment.role, assignment.index)
    fetcher = VariableFetcher(addresses[own_shard], parts.params_structure(), period_s=experiment.actor.fetch_period)
    writer = ReplayWriter(
        addresses,
        parts.layout,
        parts.agent.replay,
        experiment.environment.per_actor,
        initial_priorities=parts.agent.initial_priorities,
        start=own_shard,
        items_in_flight=experiment.actor.items_in_flight,
        items_per_shard=experiment.actor.items_per_shard,
        balanced=assignment.balanced,
        stop=stop,
    )
    try:
        fetcher.start()
        metrics.write({"state": f"waiting: weights from {addresses[own_shard]}"})
        version = wait_for_weights(fetcher, addresses[own_shard], stop)
        if version is not None:
            numbers = (experiment.run.seed, ACTOR_STREAM, assignment.index, version)
            environments = make_environments(experiment.environment, experiment.environment.per_actor, numbers)
            try:
                _act(assignment, numbers, parts, environments, fetcher, writer, metrics, stop)
            finally:
                environments.close()
    finally:
        metrics.write({"state": "stopping"})
        writer.close(timeout_s=2.0)
        logging.info("Wrote %s", writer.counts)
        fetcher.close()
        metrics.close(timeout=1.0)
    return ""


def fleet_of(experiment: Experiment, actor: int) -> Fleet:
    """An actor's environments among all: those of the accelerated actors come last."""
    topology, accelerated = experiment.topology, experiment.accelerated
    after = topology.accelerated_actors * accelerated.threads * accelerated.environments
    return Fleet(actor, topology.actors, experiment.environment.per_actor, after=after)


def wait_for_weights(fetcher: VariableFetcher, address: str, stop: threading.Event) -> int | None:
    """Waits for the first weights, saying so every 10 s; their version, or None if stopped before they came.

    Random numbers are drawn from that version besides the seed: a role that is started again, or goes on from a
    checkpoint, doesn't live through its first episodes once more.
    """
    while not fetcher.wait(PATIENCE, stop):
        if stop.is_set():
            return None
        logging.info("Waiting for the first weights from the shard at %s. Is the learner running?", address)
    return fetcher.fetched_version


def _act(
    assignment: Assignment,
    numbers: tuple[int, ...],
    parts: Parts,
    environments: Environments,
    fetcher: VariableFetcher,
    writer: ReplayWriter,
    metrics: MetricsWriter,
    stop: threading.Event,
) -> None:
    experiment = assignment.experiment
    fleet = fleet_of(experiment, assignment.index)
    state = jax.jit(parts.agent.init_actor, static_argnums=1)(key_of(*numbers), fleet)
    act = jax.jit(parts.agent.act)
    stored_state = parts.agent.stored_state
    params, version = None, np.zeros(environments.num, np.int32)
    timestep = environments.reset()
    steps, report_at = 0, 0.0
    while not stop.is_set():
        newest = fetcher.newest()
        if newest is not None:
            if params is None:
                logging.info("Acting with the weights of learner step %d.", newest[1])
            params = jax.device_put(newest[0])
            version = np.full(environments.num, newest[1], np.int32)
        memory = () if stored_state is None else stored_state(state)
        output, state = act(params, state, timestep)
        following = environments.step(np.asarray(output.action))
        writer.append(row_of(timestep, output, following, version), jax.tree.map(np.asarray, memory))
        steps += int(np.count_nonzero(~following.first))
        timestep = following
        now = time.monotonic()
        if now >= report_at:
            report_at = now + experiment.actor.report_period
            metrics.write(_report(steps, environments, fetcher, writer, int(version[0])))
    metrics.write(_report(steps, environments, fetcher, writer, int(version[0])))  # what came since the last record


def _report(
    steps: int, environments: Environments, fetcher: VariableFetcher, writer: ReplayWriter, version: int
) -> dict[str, Any]:
    counts = writer.counts
    return {
        "state": "running",
        "environment_steps": steps,
        "episodes": [[episode.return_, episode.length] for episode in environments.episodes()],
        "version": version,
        "weights_delay_s": fetcher.delay_s,
        "items_created": counts.items_created,
        "items_unconfirmed": counts.items_unconfirmed,
        "items_skipped": counts.items_skipped,
        "items_lost": counts.items_lost,
        "seconds_waiting": counts.seconds_waited,
    }
