"""What can be known to fail is refused here, before a role starts."""

import shutil
import threading
from collections.abc import Sequence

import jax
import numpy as np
import psutil
from absl import logging

from agents.agent import Fleet
from agents.rows import row_of
from agents.signature_checks import check_agent
from agents.signatures import example_timestep, state_spec
from configs.experiment import Experiment
from launch.assembly import Parts, assemble, key_of
from launch.roles import Assignment
from replay.fields import check_rows
from replay.tables import memory_of

MEMORY_SHARE = 0.9  # of what is available may go to full tables


def run(assignment: Assignment, stop: threading.Event) -> str:
    """The role that comes before all others: "" where the experiment can run, else what keeps it from that."""
    try:
        for line in check(assignment.experiment):
            logging.info("%s", line)
        check_disk(disk_free(str(assignment.run_directory)), assignment.experiment)
    except (ValueError, TypeError, ImportError) as error:
        logging.exception("This experiment can't run.")
        return f"This experiment can't run. {type(error).__name__}: {error}"
    return ""


def check(experiment: Experiment) -> Sequence[str]:
    """Builds everything once without starting anything; what the run will be, in lines for a person.

    Raises:
        ValueError: for whatever can't work; the message names the field, the value, why and the fix.
    """
    parts = assemble(experiment)
    check_batch(experiment)
    if ":" in experiment.agent:  # from outside: those here are held to it by tests, and it takes two seconds
        check_agent(parts.agent, parts.environment)
    check_row(experiment, parts)
    needed = memory_of(parts.agent.replay, parts.layout, experiment.topology.shards)
    check_memory(needed, psutil.virtual_memory().available, parts.agent.replay.max_size)
    return describe(experiment, parts, needed)


def check_batch(experiment: Experiment) -> None:
    """The numbers of the loops that no other part checks."""
    for field, value in (
        ("environment.per_actor", experiment.environment.per_actor),
        ("topology.shards", experiment.topology.shards),
        ("topology.actors", experiment.topology.actors),
        ("topology.actors_per_pod", experiment.topology.actors_per_pod),
        ("learner.batch_size", experiment.learner.batch_size),
        ("learner.publish_period", experiment.learner.publish_period),
        ("evaluator.environments", experiment.evaluator.environments),
        ("evaluator.episodes", experiment.evaluator.episodes),
    ):
        if value < 1:
            raise ValueError(f"{field}={value} must be at least 1. Set {field}=1 or more.")
    if experiment.topology.evaluators not in (0, 1):
        raise ValueError(
            f"topology.evaluators={experiment.topology.evaluators} must be 0 or 1: one evaluator measures the newest "
            "weights. Set topology.evaluators=1."
        )
    if np.isfinite(experiment.run.target_return) and not experiment.topology.evaluators:
        raise ValueError(
            f"run.target_return={experiment.run.target_return} can't be reached without an evaluator. "
            "Set topology.evaluators=1, or end the run by run.environment_steps."
        )


def check_row(experiment: Experiment, parts: Parts) -> None:
    """What the actors will append against what the tables take: fields, dtypes and shapes."""
    count = experiment.environment.per_actor
    timestep = example_timestep(parts.environment, count)

    def first_output(key: jax.Array) -> object:
        state = parts.agent.init_actor(key, Fleet(0, experiment.topology.actors, count))
        params = parts.agent.actor_params(parts.agent.init_learner(key))
        return parts.agent.act(params, state, timestep)[0]

    shapes = jax.eval_shape(first_output, key_of(0))
    output = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    stored = jax.tree.map(
        lambda spec: np.zeros((count, *spec.shape), spec.dtype), state_spec(parts.agent, parts.environment)
    )
    check_rows(parts.layout, row_of(timestep, output, timestep, np.zeros(count, np.int32)), stored, count)


def check_memory(needed: int, available: int, max_size: int) -> None:
    """Full tables against the memory there is."""
    if needed > available * MEMORY_SHARE:
        fitting = int(max_size * available * MEMORY_SHARE / needed)
        raise ValueError(
            f"agent_config.replay.max_size={max_size} needs {size(needed)} when the tables are full, before "
            f"compression, and {size(available)} are available. Set agent_config.replay.max_size={fitting} or less."
        )


def check_disk(free: int, experiment: Experiment) -> None:
    """The run directory's disk: the learner's checkpoints and logs, and those of full shards before compression."""
    shard, parts = experiment.shard, assemble(experiment)
    if shard.checkpoints_kept < 1:
        raise ValueError(f"shard.checkpoints_kept={shard.checkpoints_kept} must be at least 1. Set it to 1 or more.")
    tables = memory_of(parts.agent.replay, parts.layout, experiment.topology.shards)
    generations = 0 if parts.plan.queue or not shard.checkpoint_period else shard.checkpoints_kept + 1
    needed = 2**29 + generations * tables
    if free < needed:
        raise ValueError(
            f"run.directory={experiment.run.directory!r} has {size(free)} left on its disk: logs and checkpoints may "
            f"need {size(needed)}, most of it for the shards' tables. Free some, set run.directory to another disk, or "
            "set shard.checkpoint_period=0."
        )


def disk_free(path: str) -> int:
    """Bytes free on the disk of a path."""
    return shutil.disk_usage(path).free


def describe(experiment: Experiment, parts: Parts, needed: int) -> Sequence[str]:
    """The program in a few lines: nodes, tables, limits, memory."""
    replay, topology, plan = parts.agent.replay, experiment.topology, parts.plan
    return (
        f"environment  {experiment.environment.name} ({experiment.environment.library}), "
        f"{topology.actors} actors x {experiment.environment.per_actor} environments",
        f"agent        {experiment.agent}",
        f"roles        {topology.shards} replay shards, {topology.actors} actors, 1 learner, "
        f"{topology.evaluators} evaluator, 1 monitor",
        f"items        {replay.sequence_length} rows (burn-in {replay.burn_in}, trace {replay.trace}, bootstrap "
        f"{replay.n_step}), one every {replay.period} rows; {size(parts.layout.item_nbytes)} each as sampled",
        f"a shard      {plan}",
        f"memory       {size(needed)} for full tables, all shards together, before compression",
        f"learner      batches of {experiment.learner.batch_size} sequences",
    )


def size(count: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
