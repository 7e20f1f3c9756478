"""The replay role: serves one shard until it is stopped."""

import threading

from absl import logging

from launch.assembly import assemble
from launch.roles import Assignment
from replay.server import Shard


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Serves shard `index` at its address until `stop` is set."""
    parts = assemble(assignment.experiment)
    address = assignment.addresses[assignment.index]
    shard = Shard(int(address.rsplit(":", 1)[1]), parts.plan, parts.layout)
    logging.info("Serving %s at %s.", assignment.name, address)
    try:
        stop.wait()
    finally:
        shard.stop()
    return ""
