"""The learner: samples batches from all shards, updates its state, and sends weights and priorities back."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
from launch.chaos_signal import is_delayed
from launch.checkpoint_clock import CheckpointClock
from launch.checkpoints import LearnerCheckpoints
from launch.learner_group import LearnerGroup
from launch.policy_lag import FreshBatches
from launch.roles import Assignment
from launch.run_directory import RunDirectory
from replay.dataset import ReplayBatch, ReplayReader
from replay.metrics import MetricsWriter
from replay.priorities import PriorityUpdater
from replay.publication import PERIOD_S
from replay.steps import Batch, SampleInfo
from replay.variables import VariablePublisher

LEARNER_STREAM = 2  # sets the learner's random numbers apart from the actors'
REPORT_PERIOD = 0.5  # seconds between two metrics records
PATIENCE = 10.0  # seconds between two words on what is waited for

UpdateFunction = Any  # of make_update(); a jitted function, which can also be lowered


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
        found = restored or (jax.tree.map(np.asarray, state), 0)
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
    """A jitted function of the state, on all devices of the mesh and donated, and of one or more batches as the reader
    gives them, each (arrays, info), split over the mesh. Does one learner step with each batch.

    Returns:
        The new state; metrics, means over the steps, on all devices; and each batch's priorities, split as it is.
    """
    replicated, split = shardings_of(mesh)

    def step(state: LearnerState, batch: tuple[Any, SampleInfo]) -> tuple[LearnerState, Update]:
        steps, stored = each_share(parts.layout.assemble, (0,), (1, 0))(batch[0])
        return parts.agent.update(state, Batch(steps, stored, batch[1]))

    def update(state: LearnerState, *batches: tuple[Any, SampleInfo]) -> tuple[LearnerState, Any, Sequence[Any]]:
        with split_over(mesh):
            if len(batches) == 1:
                state, said = step(state, batches[0])
                return state, said.metrics, [said.priorities]
            state, said = jax.lax.scan(step, state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches))
            metrics = jax.tree.map(lambda values: jnp.mean(values, axis=0), said.metrics)
            return state, metrics, [None] * len(batches) if said.priorities is None else list(said.priorities)

    return jax.jit(update, donate_argnums=0, out_shardings=(replicated, replicated, split))


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
        self._fresh = FreshBatches(reader, self._config.max_policy_lag)
        self._compiles_first = parts.plan.queue
        self._update, self._snapshot = make_update(parts, mesh), make_snapshot(parts)
        self._state, self._steps = state, steps
        self._waited = 0.0  # seconds
        self._lags: list[float] = []  # learner steps, since the last record
        self._report_at = 0.0
        self._newest: Mapping[str, Any] | None = None
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
        if self._compiles_first:
            self._compile()
        self._publish()
        previous: Any = None
        while True:
            if self._last_step and self._steps >= self._last_step:
                return f"{self._steps:,} learner steps reached"
            batches = self._next_batches()
            if not batches:
                return ""
            self._state, metrics, priorities = self._update(
                self._state, *((each.arrays, each.info) for each in batches)
            )
            for batch, priority in zip(batches, priorities, strict=True):
                if priority is not None:
                    self._priorities.update(batch.shard, batch.key, priority)
                self._lags.append(self._steps - batch.version_mean)
                self._steps += 1
                self._unpublished = self._unpublished or self._steps % self._config.publish_period == 0
            if self._unpublished and time.monotonic() >= self._publish_at and not is_delayed():
                self._publish()
            if previous is None:
                jax.block_until_ready(metrics)
                logging.info("First learner step done, compiled in it.")
            else:  # one call may be under way while the next batches are fetched, not more
                jax.block_until_ready(previous)
            previous = self._newest = metrics
            self._report(metrics)
            if self._clock.due:
                self._save()

    def _compile(self) -> None:
        """Compiles the update before there are weights to act with: what actors gather while it is compiled would all
        be of the first weights, and as many updates old when its turn comes as batches wait before it.
        """
        copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))(self._state)
        batch = self._reader.example()
        calls = [(dict(batch.arrays), batch.info)] * self._config.updates_per_call
        jax.block_until_ready(self._update(copy, *calls))
        logging.info("Compiled the update.")

    def _publish(self) -> None:
        if self._group.rank == 0:
            self._publisher.publish(self._snapshot(self._state), self._steps)
        self._unpublished, self._publish_at = False, time.monotonic() + PERIOD_S

    def _publish_pending(self) -> None:
        """Publishes what was left out because it came too soon after the publication before it.

        A copy of the weights waits for the update that makes them: one at every step would keep this thread from
        fetching the next batch meanwhile, for weights that are replaced before their turn comes.
        """
        if self._unpublished and not is_delayed():
            self._publish()

    def _next_batches(self) -> Sequence[ReplayBatch]:
        """The batches of one call, once every process of the learner has its; none where all are to end."""
        began = time.monotonic()
        say_at = began + PATIENCE
        count = self._config.updates_per_call
        if self._last_step:
            count = min(count, self._last_step - self._steps)
        batches: list[ReplayBatch] = []
        while not self._group.ended:
            batch = self._fresh.next(self._steps, timeout_s=0.5) if len(batches) < count else None
            if batch is not None:
                batches.append(batch)
            ready = len(batches) == count
            if ready and self._group.may_go(self._steps, timeout_s=0.5):
                self._waited += time.monotonic() - began
                return batches
            if batch is not None and not ready:
                continue
            self._publish_pending()
            if self._clock.due:
                self._save()
            if time.monotonic() >= say_at:
                say_at += PATIENCE
                self._say_waiting(time.monotonic() - began, ready)
            awaited = f"a batch of {self._group.missing}" if ready else "a batch from replay"
            self._report(None, state=f"waiting: {awaited}")
        return ()

    def _say_waiting(self, seconds: float, ready: bool) -> None:
        if ready:
            logging.info("Waiting %.0f s for %s to have a batch; see there.", seconds, self._group.missing)
            return
        stalled = ", ".join(self._reader.stalled) or "none is stalled"
        logging.info(
            "Waiting %.0f s for a batch from the shards at %s (stalled: %s). Are the actors writing, and is "
            "replay.min_size reached?", seconds, ", ".join(self._addresses), stalled,
        )  # fmt: skip

    def _report(self, metrics: Mapping[str, Any] | None, state: str = "running") -> None:
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
            "batches_dropped": self._fresh.dropped,
            "priorities_dropped": self._priorities.counts.dropped,
            "publications_replaced": sum(self._publisher.counts.replaced),
        }
        if self._lags:
            values["policy_lag"] = float(np.mean(self._lags))
            self._lags.clear()
        if metrics is not None:
            values.update({f"loss/{name}": float(value) for name, value in metrics.items()})
        self._metrics.write(values)
        self._check_loss()

    def _check_loss(self) -> None:
        """Weights that went to NaN never come back: better to end here, and start again from the last good ones."""
        loss = 0.0 if self._newest is None else float(self._newest.get("total", 0.0))
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
