"""When a role takes a checkpoint: at the same times of day as the others, or when somebody asks for one."""

import math
import os
import time
from pathlib import Path

SHARE = 0.05  # of the time may go into checkpoints: one that takes long is followed by a longer pause
LOOK_SECONDS = 0.5  # between two looks at the file of requests


class CheckpointClock:
    """Tells one role when its next checkpoint is due.

    Times are multiples of the period since the epoch, so roles that know nothing of each other save together, and what
    they saved belongs together. Whoever wants one now touches `request`.
    """

    def __init__(self, request: Path, period: float) -> None:
        """`period` in seconds; 0: only when asked."""
        self._request, self._period = request, period or math.inf
        self._seen = self._asked_at()
        self._look_at = 0.0  # time.monotonic()
        self._next = self._after(time.time())

    @property
    def due(self) -> bool:
        """Whether it is time; cheap enough for every step of a loop."""
        if time.time() >= self._next:
            return True
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_SECONDS
        return self._asked_at() != self._seen

    def taken(self, seconds: float) -> None:
        """Notes that a checkpoint was taken, or tried, in so many seconds."""
        self._seen = self._asked_at()
        self._next = self._after(time.time() + seconds * (1 / SHARE - 1))

    def _after(self, moment: float) -> float:
        return math.inf if math.isinf(self._period) else (moment // self._period + 1) * self._period

    def _asked_at(self) -> int:
        """When the newest request was made, as the file system has it; 0: never."""
        try:
            return os.stat(self._request).st_mtime_ns
        except FileNotFoundError:
            return 0
