"""Probes of a node, for Kubernetes: `python -m launch.probe live|ready|started`; exit code 0 says yes.

A node's processes touch files while they are well (launch/liveness.py); this only looks at how old those are. So it
takes 0.05 s and 10 MB where asking the shard from a new process would take 5 s and 440 MB, every few seconds.
"""

import argparse
import os
import sys
import time
from pathlib import Path

HEARTBEAT = "heartbeat-"  # files in the run's directory: heartbeat-actor-3
READY = "ready-"
LIVE_SECONDS = 180.0  # without a beat: more than a compilation takes, and than a shard is held up by a checkpoint
READY_SECONDS = 15.0  # without an answer of the canary


def ages(directory: Path, prefix: str, since: float) -> dict[str, float]:
    """Seconds since each file of the prefix was touched, by name; `since` a time in seconds since the epoch: what is
    older was left on the volume by a container before this one.
    """
    now, found = time.time(), {}
    for path in sorted(directory.glob(f"{prefix}*")):
        try:
            touched = path.stat().st_mtime
        except FileNotFoundError:
            continue  # a new start of the node removes them
        if touched >= since:
            found[path.name] = now - touched
    return found


def container_start() -> float:
    """When process 1 began, in seconds since the epoch; 0 where the system doesn't tell."""
    try:
        ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])  # starttime, proc(5)
    except (OSError, IndexError, ValueError):
        return 0.0
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def complaint(question: str, directory: Path, limit: float, since: float = 0.0) -> str:
    """Why the answer is no; "" where it is yes. Nothing that is older than `since` counts."""
    beats = ages(directory, HEARTBEAT, since)
    if not beats:
        return f"no role has begun: {directory} holds no {HEARTBEAT}ROLE-INDEX"
    checks = [(beats, limit)]
    if question != "live" and any(name.startswith(f"{HEARTBEAT}replay-") for name in beats):
        answers = ages(directory, READY, since)
        if not answers:
            return "the shard hasn't answered its canary yet"
        checks.append((answers, READY_SECONDS))
    late = [
        f"{name} is {age:.0f} s old, over {most:g} s"
        for found, most in checks
        for name, age in found.items()
        if age > most
    ]
    return "; ".join(late)


def main() -> int:
    """Answers; the reason of a no goes to standard output, where `kubectl describe pod` shows it."""
    parser = argparse.ArgumentParser(prog="python -m launch.probe", description=__doc__)
    parser.add_argument("question", choices=("live", "ready", "started"))
    parser.add_argument(
        "--run_directory", default=os.environ.get("ANTIPHON_RUN_DIRECTORY", "/run/antiphon"), help="of the node"
    )
    parser.add_argument(
        "--limit", type=float, default=float(os.environ.get("ANTIPHON_LIVE_SECONDS", LIVE_SECONDS)),
        help="seconds without a beat after which a role counts as hung",
    )  # fmt: skip
    arguments = parser.parse_args()
    why = complaint(arguments.question, Path(arguments.run_directory), arguments.limit, container_start())
    if why:
        print(f"not {arguments.question}: {why}")
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main())
