"""The evaluator: plays the greedy policy of the newest weights in environments of its own."""

import threading
import time
from collections import Counter
from typing import Any

import jax
import numpy as np
from absl import logging

from agents.agent import Fleet
from launch.actor import wait_for_weights
from launch.assembly import Parts, assemble, key_of
from launch.environments.factory import make_environments
from launch.environments.protocol import Environments, Episode
from launch.roles import Assignment
from replay.metrics import MetricsWriter
from replay.variables import VariableFetcher

EVALUATOR_STREAM = 3  # sets the evaluator's random numbers apart from the actors'


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Evaluates again and again until `stop` is set."""
    experiment = assignment.experiment
    parts = assemble(experiment)
    own_shard = assignment.index % len(assignment.addresses)
    metrics = MetricsWriter(assignment.addresses, assignment.role, assignment.index)
    fetcher = VariableFetcher(assignment.addresses[own_shard], parts.params_structure())
    try:
        fetcher.start()
        metrics.write({"state": f"waiting: weights from {assignment.addresses[own_shard]}"})
        version = wait_for_weights(fetcher, assignment.addresses[own_shard], stop)
        if version is not None:
            numbers = (experiment.run.seed, EVALUATOR_STREAM, assignment.index, version)
            environments = make_environments(experiment.environment, experiment.evaluator.environments, numbers)
            try:
                _evaluate_on_and_on(assignment, numbers, parts, environments, fetcher, metrics, stop)
            finally:
                environments.close()
    finally:
        metrics.write({"state": "stopping"})
        fetcher.close()
        metrics.close(timeout=1.0)
    return ""


def _evaluate_on_and_on(
    assignment: Assignment,
    numbers: tuple[int, ...],
    parts: Parts,
    environments: Environments,
    fetcher: VariableFetcher,
    metrics: MetricsWriter,
    stop: threading.Event,
) -> None:
    config = assignment.experiment.evaluator
    policy = jax.jit(parts.agent.act_greedily)
    evaluations = 0
    while not stop.is_set():
        newest = fetcher.newest()
        if newest is None:  # the same weights again would say nothing new
            stop.wait(0.1)
            continue
        fetcher.held = True  # else every publication of a minute is downloaded for nothing
        params, version = jax.device_put(newest[0]), newest[1]
        key = key_of(*numbers, evaluations)
        state = parts.agent.init_actor(key, Fleet(0, 1, environments.num))
        began = time.monotonic()
        if not evaluations:
            logging.info("Evaluating the weights of learner step %d.", version)
        episodes = play(policy, params, state, environments, config.episodes, stop)
        if len(episodes) < config.episodes:
            return  # stopped
        evaluations += 1
        returns = [episode.return_ for episode in episodes]
        logging.info(
            "Return %.2f over %d episodes with the weights of learner step %d, in %.1f s.",
            np.mean(returns), len(returns), version, time.monotonic() - began,
        )  # fmt: skip
        metrics.write(
            {
                "state": "running",
                "evaluation_return": float(np.mean(returns)),
                "evaluation_returns": returns,
                "evaluation_length": float(np.mean([episode.length for episode in episodes])),
                "episodes": len(returns),
                "version": version,
            }
        )
        stop.wait(config.pause)
        fetcher.held = False


def play(
    policy: Any, params: Any, state: Any, environments: Environments, episodes: int, stop: threading.Event
) -> list[Episode]:
    """Plays whole episodes from a reset. Each environment has an equal share of them, for the first to finish are the
    short ones, and taking whichever comes first would favour those. Fewer come back only when stopped.
    """
    shares = {
        index: episodes // environments.num + (index < episodes % environments.num) for index in range(environments.num)
    }
    taken: Counter[int] = Counter()
    kept: list[Episode] = []
    timestep = environments.reset()
    environments.episodes()  # what an evaluation before left unfinished
    while len(kept) < episodes and not stop.is_set():
        output, state = policy(params, state, timestep)
        timestep = environments.step(np.asarray(output.action))
        for episode in environments.episodes():
            if taken[episode.environment] < shares[episode.environment]:
                taken[episode.environment] += 1
                kept.append(episode)
    return kept
