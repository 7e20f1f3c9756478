"""TensorBoard's event files, written where they are asked for."""

import itertools
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

FLUSH_PERIOD = 5.0  # seconds; a flush waits for the disk
HEAD, TAIL = struct.Struct("<QI"), 4  # bytes around a record: its length with that one's checksum, and its own checksum


class EventFile:
    """Appends scalars to an event file of its own in a folder.

    Not tensorboardX.SummaryWriter: that one writes in a thread, which a full disk ends, after which its bounded queue
    makes the caller wait for ever. Here the caller gets the OSError, and the next write begins a new file, for a
    reader stops at a record that was cut off.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()  # two files of one second need two names
        self._flush_at = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._writer: EventsWriter | None = self._open()

    def _open(self) -> EventsWriter:
        return EventsWriter(str(self._folder / "events"), f".{time.time_ns()}.{next(self._numbers)}")

    def write(self, when: float, scalars: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """Appends values by tag at each x. `when` is in seconds since the epoch.

        Raises:
            OSError: the disk doesn't take them.
        """
        writer, self._writer = self._writer or self._open(), None  # forgotten unless all goes well
        for step, values in scalars:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
            writer.write_event(Event(wall_time=when, step=step, summary=summary))
        if time.monotonic() >= self._flush_at:
            self._flush_at = time.monotonic() + FLUSH_PERIOD
            writer.flush()
        self._writer = writer

    def close(self) -> None:
        """Flushes.

        Raises:
            OSError: the disk doesn't take the rest.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def set_aside_events(folder: Path, since: float, aside: Path) -> None:
    """Takes out of each event file what was written from `since` on, in seconds since the epoch; the files as they were
    go into the folder `aside`.
    """
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        kept = data[: _length_before(data, since)]
        if len(kept) < len(data):
            aside.mkdir(exist_ok=True)
            if (aside / path.name).exists():
                path.unlink()  # what is there begins with it: nobody appends to an earlier monitor's file
            else:
                path.rename(aside / path.name)
            if kept:
                path.write_bytes(kept)


def _length_before(data: bytes, since: float) -> int:
    """Bytes of the events before `since`, which follow one another in time; a record that was cut off is none."""
    end = 0
    while end + HEAD.size <= len(data):
        start = end + HEAD.size
        length, _ = HEAD.unpack_from(data, end)
        if start + length + TAIL > len(data) or Event.FromString(data[start : start + length]).wall_time >= since:
            break
        end = start + length + TAIL
    return end
