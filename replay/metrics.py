"""Small records from every role to the monitor, through a table of each shard.

A record is JSON in rows of bytes, filled up with spaces: uint8 [rows, ROW]. NaN and infinities are kept: they are
written as Python's json module does (NaN, Infinity, -Infinity), because a loss that became NaN is what a monitor must
show.
"""

import collections
import dataclasses
import json
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import reverb
from absl import logging

from replay.background import Patience, Threads
from replay.stream import Stream

METRICS = "metrics"  # the table's name
MAX_RECORDS = 10_000  # in one shard's table; the oldest go first when nobody reads
MAX_WAITING = 256  # records in a writer's mailbox
MAX_READ = 1_000  # records of one shard in one read
INFO_TIMEOUT_S = 1  # whole seconds; Reverb takes no others
INSERT_TIMEOUT_S = 2.0  # before the next shard is tried
RETRY_S = 0.25  # seconds between two tries
BEAT_S = 2.0  # without a record after which one goes out that says the process is alive, however busy its loop is
ROW = 1024  # bytes
MAX_ROWS = 256  # in one record; a longer one is left out
WINDOW = 4096  # newest records of one writer of which is known whether they have arrived; older ones are too late
WRITERS = 10_000  # that are remembered, the newest

Value = Any  # a number (Python's, numpy's or a jax scalar), a str, None, or lists of them


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What one role said at one time."""

    role: str
    index: int
    time: float  # seconds since the epoch, by the writer's clock, when it was written
    values: dict[str, Any]


def make_metrics_table() -> reverb.Table:
    """A table that hands out each record once, the oldest first, and never makes a writer wait: a full one drops its
    oldest record.
    """
    return reverb.Table(
        name=METRICS,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=MAX_RECORDS,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


class MetricsWriter:
    """Sends one role's records to a shard, in the background; to the next one when that does not take them.

    Each record has the process's `pid`. When none was written for BEAT_S, one is sent that has `quiet_s` beside it:
    seconds since the last one.
    """

    def __init__(self, addresses: Sequence[str], role: str, index: int) -> None:
        self._addresses = list(addresses)
        self._streams: dict[str, Stream] = {}
        self._shard = index % len(self._addresses)  # so that roles spread over the shards
        self._head = {"role": role, "index": index}
        self._name = f"{role}-{index}-{secrets.token_hex(6)}"
        self._sequence = 0
        self._dropped = 0  # pushed out of the mailbox by newer ones
        self._unencodable: set[str] = set()
        self._mailbox: collections.deque[dict[str, Any]] = collections.deque()
        self._condition = threading.Condition()
        self._finishing = False
        self._wrote_at = time.monotonic()
        self._stop = threading.Event()
        self._patience = Patience(f"metrics of {role} {index}")
        self._threads = Threads(self._ask_to_end)
        self._threads.start(self._run, f"metrics-{role}-{index}")

    def write(self, values: Mapping[str, Value]) -> None:
        """Hands over one record; never waits. jax scalars are read by the thread, so they must not be donated.

        When more than MAX_WAITING wait, the oldest is dropped; later records say how many were so far, in
        `metrics_dropped` (absent while there are none).
        """
        with self._condition:
            self._wrote_at = time.monotonic()
            self._put(values)
            self._condition.notify()

    def _put(self, values: Mapping[str, Value]) -> None:
        content = {"pid": os.getpid(), **values}
        record = {**self._head, "time": time.time(), "id": f"{self._name}-{self._sequence}", "values": content}
        self._sequence += 1
        if len(self._mailbox) >= MAX_WAITING:
            self._mailbox.popleft()
            self._dropped += 1
        if self._dropped:
            content["metrics_dropped"] = self._dropped
        self._mailbox.append(record)

    def close(self, timeout: float) -> None:
        """Sends what waits, for `timeout` seconds at most, and stops. Logs how many records were left."""
        self._finish()
        self._threads.join(timeout)
        self._threads.end(2.0)
        with self._condition:
            if self._mailbox:
                logging.warning("%d metrics records were not sent to any of %s", len(self._mailbox), self._addresses)

    def _finish(self) -> None:
        with self._condition:
            self._finishing = True
            self._condition.notify()

    def _ask_to_end(self) -> None:
        self._stop.set()
        self._finish()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._condition:
                while not self._mailbox and not self._finishing:
                    if not self._condition.wait(BEAT_S) and not self._mailbox:
                        self._put({"quiet_s": time.monotonic() - self._wrote_at})
                if not self._mailbox:
                    break
                record = self._mailbox[0]
            rows = self._encode(record)
            if rows is None or self._send(rows):
                self._patience.over()
                with self._condition:
                    if self._mailbox and self._mailbox[0] is record:  # else it was dropped meanwhile
                        self._mailbox.popleft()
            else:
                self._shard = (self._shard + 1) % len(self._addresses)
                self._stop.wait(RETRY_S)
        for stream in self._streams.values():
            stream.close()

    def _send(self, rows: np.ndarray[Any, Any]) -> bool:
        """Whether the shard confirmed it in time."""
        address = self._addresses[self._shard]
        if address not in self._streams:
            self._streams[address] = Stream(address)
        stream = self._streams[address]
        deadline = time.monotonic() + INSERT_TIMEOUT_S
        try:
            if not stream.is_confirmed():
                raise TimeoutError("an earlier record still waits there")
            writer = stream.open({"record": ROW}, steps=MAX_ROWS)
            for row in rows:
                writer.append({"record": row})
            writer.create_item(METRICS, 1.0, {"record": writer.history["record"][-len(rows) :]})
            while not stream.is_confirmed():
                if self._stop.is_set() or time.monotonic() > deadline:
                    raise TimeoutError(f"no confirmation within {INSERT_TIMEOUT_S} s")
            return True
        except Exception as error:  # whatever a server may answer: the next one is tried
            self._patience.waiting(f"{address} does not take them ({error}), trying the next shard")
            return False

    def _encode(self, record: dict[str, Any]) -> np.ndarray[Any, Any] | None:
        values = {}
        for name, value in record["values"].items():
            try:
                values[str(name)] = _to_plain(value)
            except Exception as error:  # a deleted jax array, an object: the other values still go
                if name not in self._unencodable:
                    self._unencodable.add(name)
                    logging.warning("metric %s is left out: %s", name, error)
        encoded = json.dumps({**record, "values": values}).encode()
        rows = -(-len(encoded) // ROW)
        if rows > MAX_ROWS:
            logging.warning("a metrics record of %d bytes is left out: %s...", len(encoded), encoded[:200])
            return None
        return np.frombuffer(encoded.ljust(rows * ROW), np.uint8).reshape(rows, ROW)


class Arrived:
    """Which of one writer's records have arrived: one that misses a confirmation sends a record again. A bit for each,
    for what is kept of each record adds up over days.
    """

    def __init__(self) -> None:
        self._newest, self._bits = -1, 0

    def add(self, number: int) -> bool:
        """Notes one; whether it is new. Of one more than WINDOW before the newest that isn't known: it is not."""
        ahead = number - self._newest
        if ahead > 0:
            self._newest = number
            self._bits = (self._bits << ahead | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            return True
        if -ahead >= WINDOW or self._bits >> -ahead & 1:
            return False
        self._bits |= 1 << -ahead
        return True


class MetricsReader:
    """Collects the records of all shards."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.bad_records = 0  # what was in a table and is no record
        self._shards = [_ShardReader(address) for address in addresses]
        self._arrived: dict[str, Arrived] = {}  # by writer, in the order in which they were first heard

    @property
    def silent(self) -> list[str]:
        """Addresses of the shards that didn't answer the last read in time."""
        return [shard.address for shard in self._shards if not shard.answered]

    def read(self, timeout_s: float = 2.0) -> list[Record]:
        """All records that are there, by shard in the order they were written (MAX_READ of each at most).

        A shard that doesn't answer costs `timeout_s` once, and nothing until it answers again.
        """
        deadline = time.monotonic() + timeout_s
        asked = [shard for shard in self._shards if shard.ask()]
        for shard in asked:
            shard.wait(max(0.0, deadline - time.monotonic()))
        records = []
        for shard in self._shards:
            for columns in shard.take():
                try:
                    writer, number, record = _decode(columns)
                except (ValueError, KeyError, TypeError) as error:
                    self.bad_records += 1
                    logging.warning("what is in the metrics table of %s is no record: %s", shard.address, error)
                    continue
                if self._arrived.setdefault(writer, Arrived()).add(number):
                    records.append(record)
        while len(self._arrived) > WRITERS:
            del self._arrived[next(iter(self._arrived))]
        return records

    def close(self, timeout: float = 2.0) -> None:
        """Stops. A thread that is blocked on a shard that is gone is left behind."""
        deadline = time.monotonic() + timeout
        for shard in self._shards:
            shard.close(max(0.0, deadline - time.monotonic()))


class _ShardReader:
    """Reads one shard in a thread of its own: a sample from a shard that dies can't be cancelled."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answered = True  # the last time it was asked
        self._client = reverb.Client(address)
        self._taken: collections.deque[list[np.ndarray[Any, Any]]] = collections.deque()
        self._asked = threading.Event()
        self._done = threading.Event()
        self._done.set()
        self._stop = False
        self._patience = Patience(f"reading metrics from {address}")
        self._threads = Threads(self._ask_to_end)
        self._threads.start(self._run, f"read-metrics-{address}")

    def ask(self) -> bool:
        """Starts a read, unless the last one goes on; whether to wait for it."""
        if not self._done.is_set():
            self.answered = False
            self._patience.waiting("the shard does not answer")
            return False
        waited_for = self.answered
        self._done.clear()
        self._asked.set()
        return waited_for

    def wait(self, timeout_s: float) -> None:
        if not self._done.wait(timeout_s):
            self.answered = False

    def take(self) -> list[list[np.ndarray[Any, Any]]]:
        """What arrived since the last call."""
        return [self._taken.popleft() for _ in range(len(self._taken))]

    def close(self, timeout: float) -> None:
        if not self._threads.end(timeout):
            logging.warning("the thread that reads metrics from %s is left behind", self.address)

    def _ask_to_end(self) -> None:
        self._stop = True
        self._asked.set()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._stop:
                return
            try:
                self._read()
                self.answered = True
                self._patience.over()
            except Exception as error:  # the shard is gone, or no replay shard: asked again at the next read
                self.answered = False
                self._patience.waiting(str(error))
            self._done.set()

    def _read(self) -> None:
        size = self._client.server_info(timeout=INFO_TIMEOUT_S)[METRICS].current_size
        if size == 0:
            return
        for sample in self._client.sample(METRICS, num_samples=min(size, MAX_READ), emit_timesteps=False):
            self._taken.append(list(sample.data))


def _to_plain(value: Value) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_to_plain(entry) for entry in value]
    array = np.asarray(value)
    if array.dtype.kind not in "biufV" or array.dtype.names:
        raise TypeError(f"{type(value).__name__} of dtype {array.dtype} is not a number, a str or a list of them")
    if array.dtype.kind == "V":  # bfloat16 and its kin
        array = array.astype(np.float64)
    return array.tolist()


def _decode(columns: Sequence[np.ndarray[Any, Any]]) -> tuple[str, int, Record]:
    """A record, its writer and its number among that one's."""
    if len(columns) != 1 or columns[0].dtype != np.uint8 or columns[0].ndim != 2:
        raise ValueError(
            f"columns {[f'{column.dtype}{list(column.shape)}' for column in columns]}, want uint8[rows, N]"
        )
    fields = json.loads(columns[0].tobytes())
    if not isinstance(fields, dict):
        raise TypeError(f"{type(fields).__name__}, want a JSON object")
    role, index, seconds, values, key = (fields[name] for name in ("role", "index", "time", "values", "id"))
    for name, value, kind in (("role", role, str), ("index", index, int), ("values", values, dict), ("id", key, str)):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}, want {kind.__name__}")
    writer, _, number = key.rpartition("-")
    if not number.isdecimal():
        raise ValueError(f"id is {key!r}, want WRITER-NUMBER")
    return writer, int(number), Record(role=role, index=index, time=float(seconds), values=values)
