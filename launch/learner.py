"""The learner: samples batches from all shards, updates its state, and sends weights and priorities back."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agents.agent import LearnerState, Params, Update
from agents.data_parallel import AXIS, each_share, split_over
from launch.assembly import Parts, assemble, key_of
from launch.checkpoint_clock import CheckpointClock
from launch.checkpoints import LearnerCheckpoints
from launch.learner_group import LearnerGroup
from launch.roles import Assignment
from launch.run_directory import RunDirectory
from replay.dataset import ReplayReader
from replay.metrics import MetricsWriter
from replay.priorities import PriorityUpdater
from replay.publication import PERIOD_S
from replay.steps import Batch, SampleInfo
from replay.variables import VariablePublisher

LEARNER_STREAM = 2  # sets the learner's random numbers apart from the actors'
REPORT_PERIOD = 0.5  # seconds between two metrics records
PATIENCE = 10.0  # seconds between two words on what is waited for

UpdateFunction = Any  # a jitted (state, arrays, info) -> (state, Update), which can also be lowered


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Learns until `stop` is set or run.learner_steps are done. Begins at the newest checkpoint if there is one."""
    group = LearnerGroup(assignment.index, assignment.experiment.learner.processes, stop)
    if not group.join():
        return ""
    try:
        reason = _learn(assignment, group)
    except Exception as error:
        group.fail(error)
        raise
    group.leave()
    return reason


def _learn(assignment: Assignment, group: LearnerGroup) -> str:
    experiment = assignment.experiment
    parts = assemble(experiment)
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    check_divides(experiment.learner.batch_size, group.processes, mesh.size // group.processes)
    replicated, split = shardings_of(mesh)
    metrics = MetricsWriter(assignment.addresses, assignment.role, assignment.index)
    metrics.write({"state": "starting"})
    reader = ReplayReader(
        assignment.addresses,
        parts.layout,
        parts.plan,
        experiment.learner.batch_size // group.processes,
        samples_in_flight=experiment.learner.samples_in_flight,
        prefetch=experiment.learner.prefetch,
        sharding=split,
    )
    publisher = VariablePublisher(assignment.addresses)
    priorities = PriorityUpdater(assignment.addresses)
    folder = assignment.run_directory / "checkpoints" / "learner"
    kept = experiment.learner.checkpoints_kept
    checkpoints = LearnerCheckpoints(folder, kept=kept) if group.rank == 0 else None
    try:
        state, steps = initial_state(parts, key_of(experiment.run.seed, LEARNER_STREAM), checkpoints, group, replicated)
        loop = _Loop(assignment, parts, mesh, group, reader, publisher, priorities, checkpoints, metrics, state, steps)
        return loop.run()
    finally:
        metrics.write({"state": "stopping"})
        reader.close()
        publisher.close(timeout=1.0)
        priorities.close(timeout=1.0)
        if checkpoints is not None:
            checkpoints.close()
        metrics.close(timeout=1.0)


def check_divides(batch_size: int, processes: int, devices: int = 1) -> None:
    """Raises ValueError where a batch doesn't split evenly over the learner's processes, of `devices` each."""
    parts = processes * devices
    if batch_size % parts:
        below, above = batch_size // parts * parts, -(-batch_size // parts) * parts
        raise ValueError(
            f"learner.batch_size={batch_size} doesn't divide over the learner's {processes} processes x {devices} "
            f"devices. Set learner.batch_size={f'{below} or ' if below else ''}{above}."
        )


def initial_state(
    parts: Parts, key: Any, checkpoints: LearnerCheckpoints | None, group: LearnerGroup, sharding: NamedSharding
) -> tuple[LearnerState, int]:
    """The newest checkpoint's state and learner steps, or a fresh state and 0; on all devices.

    Only the first process reads checkpoints; the others get the state from it, for they may have other disks.
    """
    state = jax.jit(parts.agent.init_learner, out_shardings=sharding)(key)
    restored = checkpoints.restore(state) if checkpoints is not None else None
    if group.processes > 1:
        found = jax.tree.map(np.asarray, state) if restored is None else restored[0], restored[1] if restored else 0
        host, steps = multihost_utils.broadcast_one_to_all(found, is_source=group.rank == 0)
        restored = (host, int(steps)) if steps else None
    if restored is None:
        return state, 0
    host, steps = restored
    logging.info("Restored the learner at step %d.", steps)
    return jax.tree.map(lambda leaf: replicate(leaf, sharding), host), steps


def replicate(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """A host array on all devices, of other processes too, which have to have the same."""
    return jax.make_array_from_callback(np.shape(leaf), sharding, lambda index: np.asarray(leaf)[index])


def make_update(parts: Parts, mesh: Mesh) -> UpdateFunction:
    """One jitted learner step on a batch as the reader gives it, split over the mesh; the state, on all of its devices,
    is donated. Metrics come back on all devices, priorities split as the batch is.
    """
    replicated, split = shardings_of(mesh)

    def update(state: LearnerState, arrays: dict[str, Any], info: SampleInfo) -> tuple[LearnerState, Update]:
        with split_over(mesh):
            steps, stored = each_share(parts.layout.assemble, (0,), (1, 0))(arrays)
            return parts.agent.update(state, Batch(steps, stored, info))

    return jax.jit(update, donate_argnums=0, out_shardings=(replicated, Update(replicated, split)))


def shardings_of(mesh: Mesh) -> tuple[NamedSharding, NamedSharding]:
    """The same on all devices, and split by axis 0."""
    return NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))


def make_snapshot(parts: Parts) -> Callable[[LearnerState], Params]:
    """Copies what actors need, on this process's first device, so that the next update may overwrite the state."""
    copy = jax.jit(lambda state: jax.tree.map(jnp.copy, parts.agent.actor_params(state)))
    return lambda state: copy(jax.tree.map(lambda leaf: leaf.addressable_data(0), state))


class _Loop:
    """The learner's steps, and what is said about them."""

    def __init__(
        self,
        assignment: Assignment,
        parts: Parts,
        mesh: Mesh,
        group: LearnerGroup,
        reader: ReplayReader,
        publisher: VariablePublisher,
        priorities: PriorityUpdater,
        checkpoints: LearnerCheckpoints | None,
        metrics: MetricsWriter,
        state: LearnerState,
        steps: int,
    ) -> None:
        self._config = assignment.experiment.learner
        self._last_step = assignment.experiment.run.learner_steps
        self._addresses = assignment.addresses
        self._group = group
        self._reader, self._publisher, self._priorities = reader, publisher, priorities
        self._checkpoints, self._metrics = checkpoints, metrics
        self._update, self._snapshot = make_update(parts, mesh), make_snapshot(parts)
        self._state, self._steps = state, steps
        self._waited = 0.0  # seconds
        self._lags: list[float] = []  # learner steps, since the last record
        self._report_at = 0.0
        self._newest: Update | None = None
        self._publish_at = 0.0  # when shards take weights again
        self._unpublished = False  # whether weights are newer than those published
        self._clock = CheckpointClock(RunDirectory(assignment.run_directory).request, self._config.checkpoint_period)

    def run(self) -> str:
        reason = self._learn()
        self._publish_pending()
        self._save()
        self._report_at = 0.0  # the last record counts what came since the one before
        self._report(None, state="stopping")
        return reason

    def _learn(self) -> str:
        self._publish()
        previous: Update | None = None
        while True:
            if self._last_step and self._steps >= self._last_step:
                return f"{self._steps:,} learner steps reached"
            batch = self._next_batch()
            if batch is None:
                return ""
            self._state, update = self._update(self._state, batch.arrays, batch.info)
            self._steps += 1
            if update.priorities is not None:
                self._priorities.update(batch.shard, batch.key, update.priorities)
            if self._steps % self._config.publish_period == 0:
                self._unpublished = True
                if time.monotonic() >= self._publish_at:
                    self._publish()
            self._lags.append(self._steps - 1 - batch.version_mean)
            if previous is None:
                jax.block_until_ready(update.metrics)
                logging.info("First learner step done, compiled in it.")
            else:  # one update may be under way while the next batch is fetched, not more
                jax.block_until_ready(previous.metrics)
            previous = self._newest = update
            self._report(update)
            if self._clock.due:
                self._save()

    def _publish(self) -> None:
        if self._group.rank == 0:
            self._publisher.publish(self._snapshot(self._state), self._steps)
        self._unpublished, self._publish_at = False, time.monotonic() + PERIOD_S

    def _publish_pending(self) -> None:
        """Publishes what was left out because it came too soon after the publication before it.

        A copy of the weights waits for the update that makes them: one at every step would keep this thread from
        fetching the next batch meanwhile, for weights that are replaced before their turn comes.
        """
        if self._unpublished:
            self._publish()

    def _next_batch(self) -> Any:
        """A batch, once every process of the learner has one; None where all are to end."""
        began = time.monotonic()
        say_at = began + PATIENCE
        batch = None
        while not self._group.ended:
            batch = batch or self._reader.next(timeout_s=0.5)
            if batch and self._group.may_go(self._steps, timeout_s=0.5):
                self._waited += time.monotonic() - began
                return batch
            self._publish_pending()
            if self._clock.due:
                self._save()
            if time.monotonic() >= say_at:
                say_at += PATIENCE
                self._say_waiting(time.monotonic() - began, batch)
            awaited = f"a batch of {self._group.missing}" if batch else "a batch from replay"
            self._report(None, state=f"waiting: {awaited}")
        return None

    def _say_waiting(self, seconds: float, batch: Any) -> None:
        if batch:
            logging.info("Waiting %.0f s for %s to have a batch; see there.", seconds, self._group.missing)
            return
        stalled = ", ".join(self._reader.stalled) or "none is stalled"
        logging.info(
            "Waiting %.0f s for a batch from the shards at %s (stalled: %s). Are the actors writing, and is "
            "replay.min_size reached?", seconds, ", ".join(self._addresses), stalled,
        )  # fmt: skip

    def _report(self, update: Update | None, state: str = "running") -> None:
        now = time.monotonic()
        if now < self._report_at:
            return
        self._report_at = now + REPORT_PERIOD
        values: dict[str, Any] = {
            "state": state,
            "learner_steps": self._steps,
            "version": self._steps,
            "samples": self._steps * self._config.batch_size,
            "seconds_waiting": self._waited,
            "priorities_dropped": self._priorities.counts.dropped,
            "publications_replaced": sum(self._publisher.counts.replaced),
        }
        if self._lags:
            values["policy_lag"] = float(np.mean(self._lags))
            self._lags.clear()
        if update is not None:
            values.update({f"loss/{name}": float(value) for name, value in update.metrics.items()})
        self._metrics.write(values)
        self._check_loss()

    def _check_loss(self) -> None:
        """Weights that went to NaN never come back: better to end here, and start again from the last good ones."""
        loss = 0.0 if self._newest is None else float(self._newest.metrics.get("total", 0.0))
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"The loss is {loss} at learner step {self._steps:,}: no weights after it are worth keeping. Look at "
                "loss/* in metrics.jsonl, and lower agent_config.learning_rate or set agent_config.reward_clip."
            )

    def _save(self) -> None:
        self._check_loss()
        began = time.monotonic()
        if self._checkpoints is not None:
            self._checkpoints.save(self._steps, self._state)
        self._clock.taken(time.monotonic() - began)
