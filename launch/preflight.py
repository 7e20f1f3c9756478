"""What can be known to fail is refused here, before a role starts."""

import os
import shutil
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import jax
import numpy as np
import psutil
from absl import logging

from agents.agent import Fleet
from agents.rows import row_of
from agents.signature_checks import check_agent
from agents.signatures import example_timestep, state_spec
from configs.bounds import check_bounds
from configs.experiment import Experiment
from launch.assembly import Parts, assemble, key_of
from launch.learner import check_divides
from launch.placement import check_placement, gpus
from launch.roles import Assignment
from replay.fields import check_rows
from replay.tables import memory_of

MEMORY_SHARE = 0.9  # of what is available may go to full tables


def run(assignment: Assignment, stop: threading.Event) -> str:
    """The role that comes before all others: "" where the experiment can run, else what keeps it from that."""
    try:
        for line in check(assignment.experiment, assignment.run_directory):
            logging.info("%s", line)
    except (ValueError, TypeError, ImportError) as error:
        logging.exception("This experiment can't run.")
        return f"This experiment can't run. {type(error).__name__}: {error}"
    return ""


def check(experiment: Experiment, directory: Path) -> Sequence[str]:
    """Builds everything once without starting anything; what the run will be, in lines for a person.

    Args:
        experiment: what is to run.
        directory: where its files go; it need not be there yet.

    Raises:
        ValueError: for whatever can't work; the message names the field, the value, why and the fix.
    """
    parts = check_experiment(experiment, gpus())
    needed = memory_of(parts.agent.replay, parts.layout, experiment.topology.shards)
    check_memory(needed, psutil.virtual_memory().available, parts.agent.replay.max_size)
    check_disk(disk_free(directory), experiment, parts, needed)
    return describe(experiment, parts, needed)


def check_experiment(experiment: Experiment, present: Collection[int] = ()) -> Parts:
    """The checks of what is the same on every machine that has those GPUs; what the experiment is made of.

    Raises:
        ValueError: as check().
    """
    check_bounds(experiment)
    check_divides(experiment.learner.batch_size, experiment.learner.processes)
    check_placement(experiment, present)
    parts = assemble(experiment)
    if ":" in experiment.agent:  # from outside: those here are held to it by tests, and it takes two seconds
        check_agent(parts.agent, parts.environment)
    check_row(experiment, parts)
    return parts


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


def check_disk(free: int, experiment: Experiment, parts: Parts, tables: int) -> None:
    """The run directory's disk: the learner's checkpoints and logs, and those of full shards before compression."""
    shard = experiment.shard
    generations = 0 if parts.plan.queue or not shard.checkpoint_period else shard.checkpoints_kept + 1
    needed = 2**29 + generations * tables
    if free < needed:
        raise ValueError(
            f"run.directory={experiment.run.directory!r} has {size(free)} left on its disk: logs and checkpoints may "
            f"need {size(needed)}, most of it for the shards' tables. Free some, set run.directory to another disk, or "
            "set shard.checkpoint_period=0."
        )


def disk_free(path: Path) -> int:
    """Bytes free on the disk of a path, or of the nearest folder above it that is there.

    Raises:
        ValueError: nothing can be written there.
    """
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(
            f"run.directory={str(path)!r} can't be made or written: {there} is no folder that this user may write to. "
            "Set run.directory to another folder."
        )
    return shutil.disk_usage(there).free


def describe(experiment: Experiment, parts: Parts, needed: int) -> Sequence[str]:
    """The program in a few lines: nodes, tables, limits, memory."""
    replay, topology, plan = parts.agent.replay, experiment.topology, parts.plan
    accelerated = experiment.accelerated
    actors = [f"{topology.actors} actors x {experiment.environment.per_actor} environments"] if topology.actors else []
    if topology.accelerated_actors:
        actors.append(
            f"{topology.accelerated_actors} accelerated actors x {accelerated.threads} threads x "
            f"{accelerated.environments} environments, {accelerated.batch_size} at once"
        )
    return (
        f"environment  {experiment.environment.name} ({experiment.environment.library}), {'; '.join(actors)}",
        f"agent        {experiment.agent}",
        f"roles        {topology.shards} replay shards, {topology.actors + topology.accelerated_actors} actors, "
        f"{experiment.learner.processes} learner, {topology.evaluators} evaluator, 1 monitor",
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
