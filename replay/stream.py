"""One shard's end of a channel: a writer that lives as long as its owner, and is never closed on a shard that is gone.

Closing a TrajectoryWriter whose server is gone corrupts the process's heap (seen with 0.11.0: `malloc(): unaligned
tcache chunk` or a segmentation fault some calls later, when the server had been away for a second or more; the garbage
collector closes writers too). A writer that is left alone resumes by itself when its server is back.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

import reverb

SLICE_MS = 250  # milliseconds of one uninterruptible wait
INFO_TIMEOUT_S = 1  # whole seconds; Reverb takes no others


def leave_behind(writer: Any) -> None:
    """Keeps a writer whose shard is gone from ever being closed: by its __del__ neither."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer))


class Stream:
    """Inserts into one shard. Nothing but one item at a time is in flight, so items arrive in order."""

    def __init__(self, address: str) -> None:
        self.client = reverb.Client(address)
        self._writer: Any = None
        self._layout: tuple[dict[str, int], int] | None = None

    def open(self, columns: Mapping[str, int], steps: int) -> Any:
        """The shard's TrajectoryWriter, empty. Call it only when everything before is confirmed.

        `columns` are the lengths of its uint8 vectors; `steps` is what an item may have. Another writer is made when
        they change.
        """
        layout = (dict(columns), steps)
        if self._writer is not None and layout != self._layout:
            self._writer.close()  # its shard has just confirmed something
            self._writer = None
        if self._writer is None:
            self._writer = self.client.trajectory_writer(num_keep_alive_refs=steps, validate_items=False)
            self._layout = layout
            for column in columns:
                self._writer.configure((column,), num_keep_alive_refs=steps, max_chunk_length=1)
        self.clear()
        return self._writer

    def clear(self) -> None:
        """Forgets what was appended, which is kept in memory otherwise. Call it only when all is confirmed."""
        if self._writer is not None:
            self._writer.end_episode(timeout_ms=SLICE_MS)

    def is_confirmed(self) -> bool:
        """Whether the shard has all items; waits SLICE_MS for it. Raises where it will never take them."""
        if self._writer is None:
            return True
        try:
            self._writer.flush(timeout_ms=SLICE_MS)
            return True
        except reverb.errors.DeadlineExceededError:
            return False
        except Exception:
            self._abandon()
            raise

    def close(self) -> None:
        """Closes the writer if its shard answers, else leaves it behind."""
        try:
            if self._writer is not None and self.is_confirmed():
                self.client.server_info(timeout=INFO_TIMEOUT_S)
                self._writer.close()
                self._writer = None
        except Exception:  # gone: then it is not closed
            self._abandon()
        self._abandon()

    def _abandon(self) -> None:
        if self._writer is not None:
            leave_behind(self._writer)
            self._writer = None
