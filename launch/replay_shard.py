"""The replay role: serves one shard until it is stopped, and keeps checkpoints of its tables."""

import os
import threading
import time

from absl import logging

from launch.assembly import assemble
from launch.checkpoint_clock import LOOK_SECONDS, CheckpointClock
from launch.processes import stop_seconds
from launch.roles import Assignment
from launch.run_directory import RunDirectory
from replay.metrics import MetricsWriter
from replay.server import Shard
from replay.shard_checkpoints import ShardCheckpoints

STOP_SECONDS = 3.5  # that a checkpoint has to end in when the shard is to stop; one that takes longer isn't begun
AFTER = 15.0  # seconds of a container's time to stop that are not for the checkpoint

# A server ends with its process. Freeing it first takes tables of hundreds of thousands of items apart, for seconds
# that a shard which is to stop doesn't have.
_kept: list[Shard] = []


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Serves shard `index` at its address until `stop` is set, beginning with its newest good checkpoint."""
    experiment, address = assignment.experiment, assignment.addresses[assignment.index]
    parts = assemble(experiment)
    port = int(address.rsplit(":", 1)[1])
    last = stop_seconds(os.environ, AFTER, STOP_SECONDS)
    if parts.plan.queue or not experiment.shard.checkpoint_period:  # what a queue holds is stale by then
        shard = Shard(port, parts.plan, parts.layout)
        saving = None
    else:
        root = assignment.run_directory / "checkpoints" / assignment.name
        checkpoints = ShardCheckpoints(root, parts.plan, parts.layout, kept=experiment.shard.checkpoints_kept)
        shard = checkpoints.start(port)
        clock = CheckpointClock(RunDirectory(assignment.run_directory).request, experiment.shard.checkpoint_period)
        saving = threading.Thread(target=_keep_saving, args=(checkpoints, shard, clock, stop, last), daemon=True)
        saving.start()
    _kept.append(shard)
    metrics = MetricsWriter([shard.address], assignment.role, assignment.index)
    metrics.write({"state": "running"})
    logging.info("Serving %s at %s.", assignment.name, address)
    stop.wait()
    metrics.close(timeout=0.5)
    if saving is not None:
        saving.join(last)
    if saving is not None and saving.is_alive():
        logging.warning("The last checkpoint takes longer than the %g s that there are: the one before it stays.", last)
    return ""


def _keep_saving(
    checkpoints: ShardCheckpoints, shard: Shard, clock: CheckpointClock, stop: threading.Event, last: float
) -> None:
    """Saves whenever it is time to, and once more at the end if that is likely to end within `last` seconds."""
    taken = 0.0
    while not stop.wait(LOOK_SECONDS):
        if clock.due:
            taken = _save(checkpoints, shard)
            clock.taken(taken)
    if taken < last / 2:
        _save(checkpoints, shard)


def _save(checkpoints: ShardCheckpoints, shard: Shard) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    try:
        manifest = checkpoints.save(shard)
    except Exception as error:  # a full disk, say: the shard serves on, and the checkpoints before stay
        logging.error("No checkpoint this time: %s", error)
        return time.monotonic() - began
    taken, size = time.monotonic() - began, sum(file["bytes"] for file in manifest.files.values()) / 2**20
    logging.info("Checkpoint of %s in %.1f s, %.0f MiB.", manifest.items, taken, size)
    return taken
