"""The replay role: serves one shard until it is stopped, and keeps checkpoints of its tables."""

import threading
import time

from absl import logging

from launch.assembly import assemble
from launch.roles import Assignment
from replay.metrics import MetricsWriter
from replay.server import Shard
from replay.shard_checkpoints import ShardCheckpoints

SHARE = 0.05  # of the time may go into checkpoints: one that takes long is followed by a longer pause
STOP_SECONDS = 3.5  # that a checkpoint has to end in when the shard is to stop; one that takes longer isn't begun


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Serves shard `index` at its address until `stop` is set, beginning with its newest good checkpoint."""
    experiment, address = assignment.experiment, assignment.addresses[assignment.index]
    parts = assemble(experiment)
    port = int(address.rsplit(":", 1)[1])
    if parts.plan.queue or not experiment.shard.checkpoint_period:  # what a queue holds is stale by then
        shard = Shard(port, parts.plan, parts.layout)
        saving = None
    else:
        root = assignment.run_directory / "checkpoints" / assignment.name
        checkpoints = ShardCheckpoints(root, parts.plan, parts.layout, kept=experiment.shard.checkpoints_kept)
        shard = checkpoints.start(port)
        saving = threading.Thread(
            target=_keep_saving, args=(checkpoints, shard, experiment.shard.checkpoint_period, stop), daemon=True
        )
        saving.start()
    metrics = MetricsWriter([shard.address], assignment.role, assignment.index)
    metrics.write({"state": "running"})
    logging.info("Serving %s at %s.", assignment.name, address)
    stop.wait()
    metrics.close(timeout=0.5)
    if saving is not None:
        saving.join(STOP_SECONDS)
    if saving is None or not saving.is_alive():
        shard.stop()
    else:  # the server would wait for it, and ends with the process
        logging.warning(
            "The last checkpoint takes longer than the %g s that there are: the one before it stays.", STOP_SECONDS
        )
    return ""


def _keep_saving(checkpoints: ShardCheckpoints, shard: Shard, period: float, stop: threading.Event) -> None:
    pause, taken = period, 0.0
    while not stop.wait(pause) or taken < STOP_SECONDS / 2:
        began = time.monotonic()
        try:
            manifest = checkpoints.save(shard)
        except Exception as error:  # a full disk, say: the shard serves on, and the checkpoints before stay
            logging.error("No checkpoint this time: %s", error)
        else:
            size = sum(file["bytes"] for file in manifest.files.values()) / 2**20
            logging.info("Checkpoint of %s in %.1f s, %.0f MiB.", manifest.items, time.monotonic() - began, size)
        if stop.is_set():
            break
        taken = time.monotonic() - began
        pause = max(period, taken * (1 / SHARE - 1))
