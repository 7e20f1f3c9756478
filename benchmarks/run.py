"""Runs the measurements one after the other, each in a process of its own, and prints their tables.

python -m benchmarks.run [NAME ...]     # all of them without a name; takes about ten minutes
"""

import subprocess
import sys
import time
from collections.abc import Sequence

from absl import app

MEASUREMENTS = {
    "environments": "what the EnvPool adapter costs beside the bare pool",
    "replay_write": "steps/s into replay, beside Reverb alone",
    "replay_read": "items/s out of 1, 2 and 4 shards, beside a bare TrajectoryDataset",
    "weights": "publishing 32 MB of weights at every learner step, beside a bare insert and sample",
    "checkpoint": "a checkpoint of a table of 1 GB, and how long it holds up who reads and writes",
    "learner_wait": "how long the learner waits for data, off-policy with a full table",
    "learner_devices": "an update on 1, 2 and 4 devices, and the bytes that cross between them",
    "learner_overlap": "whether batches are put on the devices while an update runs, as a timeline",
    "sebulba": "accelerated actors: threads, asynchronous environments, CartPole at full speed",
    "pong": "IMPALA on Pong with all roles, beside its compute bound",
    "balancer": "prioritised replay through a load balancer, and why not (needs HAProxy)",
    "plan": "whether launch.plan's forecast of a program's rates comes true",
    "start": "from the command to the first learner step, and the memory of each role",
}


def main(argv: Sequence[str]) -> int:
    """Runs those that are named, or all."""
    for name in argv[1:]:
        if name not in MEASUREMENTS:
            print(f"{name!r} is no measurement. There are: {', '.join(MEASUREMENTS)}.", file=sys.stderr)
            return 2
    failed = []
    for name in argv[1:] or MEASUREMENTS:
        print(f"\n== {name}: {MEASUREMENTS[name]}", flush=True)
        began = time.monotonic()
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
        print(f"-- took {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return len(failed) > 0


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv):
        print(__doc__)
        print("\n".join(f"  {name:<14}{what}" for name, what in MEASUREMENTS.items()))
        sys.exit(0)
    app.run(main)
