"""What a role in a container does beside its work: it shows that it lives, by files that launch.probe looks at.

Every role's loop looks at its stop event all the time, while it moves and while it waits for shards, weights or data:
that is how it ends in time. So a look of the main thread is the beat: a role that has stopped to look wouldn't notice
SIGTERM either, and one that waits for a shard that is gone looks on and isn't killed for it. A shard's main thread
only waits for the event, so it lives as long as its interpreter runs; whether it serves is what its canary says.
"""

import os
import signal
import threading
import time
from pathlib import Path

from absl import logging

from configs.bounds import check_bounds
from launch.child import resolve
from launch.probe import HEARTBEAT, READY
from launch.processes import die_with
from launch.roles import FUNCTIONS, Assignment
from replay.background import Patience

PERIOD = 1.0  # seconds between two looks at whether the role moved
SONG_PERIOD = 3.0  # seconds between two songs of the canary


class WatchedStop(threading.Event):
    """A stop event that knows whether the main thread still looks at it."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop
        self._looked = False
        self._waiting = False

    def is_set(self) -> bool:
        """As of the event behind it."""
        self._look()
        return self._stop.is_set()

    def set(self) -> None:
        """Sets the event behind it."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """As of the event behind it; the time in here counts as looking."""
        main = self._look()
        self._waiting = self._waiting or main
        try:
            return self._stop.wait(timeout)
        finally:
            if main:
                self._waiting = False

    def take(self) -> bool:
        """Whether the main thread has looked since the last call, or is waiting now."""
        looked, self._looked = self._looked or self._waiting, False
        return looked

    def _look(self) -> bool:
        main = threading.current_thread() is threading.main_thread()
        self._looked = self._looked or main
        return main


def run(assignment: Assignment, stop: threading.Event) -> str:
    """Plays the assignment's role, and beats. Of type launch.roles.RoleFunction.

    Raises:
        ValueError: the experiment can't work; the message names the field.
    """
    check_bounds(assignment.experiment)
    watched, function = WatchedStop(stop), resolve(FUNCTIONS[assignment.role])
    if assignment.role == "replay":
        _fork_canary(assignment)
    heart = threading.Thread(target=_beat, args=(watched, assignment), name="heartbeat", daemon=True)
    heart.start()
    return str(function(assignment, watched) or "")


def _beat(stop: WatchedStop, assignment: Assignment) -> None:
    path = assignment.run_directory / f"{HEARTBEAT}{assignment.name}"
    while True:
        if stop.take():
            _touch(path)
        time.sleep(PERIOD)


def _fork_canary(assignment: Assignment) -> None:
    """In a process of its own, which shares the memory of what is imported: a client in the server's own process would
    be handed its tables, and prove nothing of the wire. It ends with its parent.
    """
    parent = os.getpid()
    if os.fork() == 0:
        try:
            die_with(parent, signal.SIGKILL)
            _keep_singing(assignment)
        finally:
            os._exit(1)  # never on into the role


def _keep_singing(assignment: Assignment) -> None:
    """Touches the file of readiness after each insert and sample that came through."""
    from replay.canary import Canary

    port = assignment.addresses[assignment.index].rsplit(":", 1)[1]
    canary = Canary(f"127.0.0.1:{port}")
    path, patience = assignment.run_directory / f"{READY}{assignment.name}", Patience("the shard's canary")
    while True:
        try:
            canary.probe(SONG_PERIOD)
        except Exception as error:
            patience.waiting(" ".join(str(error).split()))
        else:
            patience.over()
            _touch(path)
        time.sleep(SONG_PERIOD)


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:  # a full disk, say; the probe will see that it grows old
        logging.error("Can't touch %s: %s", path, error)
