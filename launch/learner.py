"""The learner: samples batches from all shards, updates its state, and sends weights and priorities back."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agents.agent import LearnerState, Params, Update
from launch.assembly import Parts, assemble, key_of
from launch.checkpoint_clock import CheckpointClock
from launch.checkpoints import LearnerCheckpoints
from launch.policy_lag import FreshBatches
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

UpdateFunction = Callable[[LearnerState, dict[str, Any], SampleInfo], tuple[LearnerState, Update]]


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Learns until `stop` is set or run.learner_steps are done. Begins at the newest checkpoint if there is one."""
    experiment = assignment.experiment
    parts = assemble(experiment)
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    check_divides(experiment.learner.batch_size, mesh.size)
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    metrics = MetricsWriter(assignment.addresses, assignment.role, assignment.index)
    metrics.write({"state": "starting"})
    reader = ReplayReader(
        assignment.addresses,
        parts.layout,
        parts.plan,
        experiment.learner.batch_size,
        samples_in_flight=experiment.learner.samples_in_flight,
        prefetch=experiment.learner.prefetch,
        sharding=split,
    )
    publisher = VariablePublisher(assignment.addresses)
    priorities = PriorityUpdater(assignment.addresses)
    checkpoints = LearnerCheckpoints(
        assignment.run_directory / "checkpoints" / "learner", kept=experiment.learner.checkpoints_kept
    )
    try:
        state, steps = initial_state(parts, key_of(experiment.run.seed, LEARNER_STREAM), checkpoints, replicated)
        loop = _Loop(assignment, parts, reader, publisher, priorities, checkpoints, metrics, state, steps)
        return loop.run(stop)
    finally:
        metrics.write({"state": "stopping"})
        reader.close()
        publisher.close(timeout=1.0)
        priorities.close(timeout=1.0)
        checkpoints.close()
        metrics.close(timeout=1.0)


def check_divides(batch_size: int, devices: int) -> None:
    """Raises ValueError where a batch doesn't split evenly over the learner's devices."""
    if batch_size % devices:
        below, above = batch_size // devices * devices, -(-batch_size // devices) * devices
        raise ValueError(
            f"learner.batch_size={batch_size} doesn't divide over the learner's {devices} devices. "
            f"Set learner.batch_size={below or above} or {above}."
        )


def initial_state(
    parts: Parts, key: Any, checkpoints: LearnerCheckpoints, sharding: NamedSharding
) -> tuple[LearnerState, int]:
    """The newest checkpoint's state and learner steps, or a fresh state and 0; on the devices, replicated."""
    state = jax.jit(parts.agent.init_learner, out_shardings=sharding)(key)
    restored = checkpoints.restore(state)
    if restored is None:
        return state, 0
    state, steps = restored
    logging.info("Restored the learner at step %d.", steps)
    return jax.device_put(state, sharding), steps


def make_update(parts: Parts) -> UpdateFunction:
    """One jitted learner step on a batch as the reader gives it; the state is donated."""

    def update(state: LearnerState, arrays: dict[str, Any], info: SampleInfo) -> tuple[LearnerState, Update]:
        steps, stored = parts.layout.assemble(arrays)
        return parts.agent.update(state, Batch(steps, stored, info))

    return jax.jit(update, donate_argnums=0)


def make_snapshot(parts: Parts) -> Callable[[LearnerState], Params]:
    """Copies what actors need on the device, so that the next update may overwrite the state."""
    return jax.jit(lambda state: jax.tree.map(jnp.copy, parts.agent.actor_params(state)))


class _Loop:
    """The learner's steps, and what is said about them."""

    def __init__(
        self,
        assignment: Assignment,
        parts: Parts,
        reader: ReplayReader,
        publisher: VariablePublisher,
        priorities: PriorityUpdater,
        checkpoints: LearnerCheckpoints,
        metrics: MetricsWriter,
        state: LearnerState,
        steps: int,
    ) -> None:
        self._config = assignment.experiment.learner
        self._last_step = assignment.experiment.run.learner_steps
        self._addresses = assignment.addresses
        self._reader, self._publisher, self._priorities = reader, publisher, priorities
        self._checkpoints, self._metrics = checkpoints, metrics
        self._fresh = FreshBatches(reader, self._config.max_policy_lag)
        self._compiles_first = parts.plan.queue
        self._update, self._snapshot = make_update(parts), make_snapshot(parts)
        self._state, self._steps = state, steps
        self._waited = 0.0  # seconds
        self._lags: list[float] = []  # learner steps, since the last record
        self._report_at = 0.0
        self._newest: Update | None = None
        self._publish_at = 0.0  # when shards take weights again
        self._unpublished = False  # whether weights are newer than those published
        self._clock = CheckpointClock(RunDirectory(assignment.run_directory).request, self._config.checkpoint_period)

    def run(self, stop: threading.Event) -> str:
        reason = self._learn(stop)
        self._publish_pending()
        self._save()
        self._report_at = 0.0  # the last record counts what came since the one before
        self._report(None, state="stopping")
        return reason

    def _learn(self, stop: threading.Event) -> str:
        if self._compiles_first:
            self._compile()
        self._publish()
        previous: Update | None = None
        while not stop.is_set():
            if self._last_step and self._steps >= self._last_step:
                return f"{self._steps:,} learner steps reached"
            batch = self._next_batch(stop)
            if batch is None:
                break
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
        return ""

    def _compile(self) -> None:
        """Compiles the update before there are weights to act with: what actors gather while it is compiled would all
        be of the first weights, and as many updates old when its turn comes as batches wait before it.
        """
        copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))(self._state)
        batch = self._reader.example()
        jax.block_until_ready(self._update(copy, dict(batch.arrays), batch.info))
        logging.info("Compiled the update.")

    def _publish(self) -> None:
        self._publisher.publish(self._snapshot(self._state), self._steps)
        self._unpublished, self._publish_at = False, time.monotonic() + PERIOD_S

    def _publish_pending(self) -> None:
        """Publishes what was left out because it came too soon after the publication before it.

        A copy of the weights waits for the update that makes them: one at every step would keep this thread from
        fetching the next batch meanwhile, for weights that are replaced before their turn comes.
        """
        if self._unpublished:
            self._publish()

    def _next_batch(self, stop: threading.Event) -> Any:
        began = time.monotonic()
        say_at = began + PATIENCE
        while not stop.is_set():
            batch = self._fresh.next(self._steps, timeout_s=0.5)
            if batch is not None:
                self._waited += time.monotonic() - began
                return batch
            self._publish_pending()
            if self._clock.due:
                self._save()
            if time.monotonic() >= say_at:
                say_at += PATIENCE
                stalled = ", ".join(self._reader.stalled) or "none is stalled"
                logging.info(
                    "Waiting %.0f s for a batch from the shards at %s (stalled: %s). Are the actors writing, and is "
                    "replay.min_size reached?", time.monotonic() - began, ", ".join(self._addresses), stalled,
                )  # fmt: skip
            self._report(None, state="waiting: a batch from replay")
        return None

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
            "batches_dropped": self._fresh.dropped,
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
        self._checkpoints.save(self._steps, self._state)
        self._clock.taken(time.monotonic() - began)
