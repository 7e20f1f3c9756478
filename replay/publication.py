"""One publication of weights, and the thread that brings the newest one to one shard."""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb
from absl import logging

from replay.background import Patience, Threads
from replay.manifest import Manifest, cut, digest_of, to_host
from replay.newest import MANIFESTS, VARIABLES, TableState, table_state

WATCH_PERIOD_S = 1.0  # seconds between two looks whether a shard still has what it was sent
SLICE_MS = 250  # milliseconds of one uninterruptible wait
BYTES_PER_SECOND = 20e6  # what an insertion's deadline allows for beside its fixed part

Tree = Any


class Publication:
    """One published tree. The first shard's thread copies it to the host, for all of them."""

    def __init__(self, tree: Tree, publisher: str, sequence: int, version: int) -> None:
        self.version = version
        self._tree = tree
        self._of = (publisher, sequence)
        self._lock = threading.Lock()
        self._encoded: tuple[Manifest, list[np.ndarray[Any, Any]]] | None = None
        self._failed = False

    def encoded(self) -> tuple[Manifest, list[np.ndarray[Any, Any]]] | None:
        """Its manifest and arrays on the host; None if an earlier call raised."""
        with self._lock:
            if self._encoded is None and not self._failed:
                self._failed = True
                publisher, sequence = self._of
                leaves, arrays = to_host(self._tree)
                manifest = Manifest(publisher=publisher, sequence=sequence, version=self.version, leaves=leaves)
                manifest = dataclasses.replace(manifest, digest=digest_of(cut(manifest, arrays)))
                self._encoded, self._tree = (manifest, arrays), None
            return self._encoded


class ShardPublisher:
    """The thread and the mailbox of one shard."""

    def __init__(self, address: str, deadline_s: float, report: Callable[[Exception], None]) -> None:
        self.inserted = self.replaced = self.failed = 0
        self._address = address
        self._deadline_s = deadline_s
        self._report = report  # called with an exception that the caller of publish() should see
        self._client = reverb.Client(address)
        self._condition = threading.Condition()
        self._newest: Publication | None = None  # the mailbox
        self._sent: Publication | None = None  # confirmed by the shard
        self._state: TableState | None = None  # of the shard's table after that; None: unknown
        self._abandoned = False  # an attempt that was given up may still arrive, and hide a newer one
        self._finishing = False
        self._stop = threading.Event()
        self._patience = Patience(f"publishing weights to {address}")
        self._threads = Threads(self._ask_to_end)
        self._threads.start(self._run, f"publish-{address}")

    def put(self, publication: Publication) -> None:
        """Replaces what waits for its turn."""
        with self._condition:
            self.replaced += self._newest is not None
            self._newest = publication
            self._condition.notify()

    def finish(self) -> None:
        """Ends the thread once the mailbox is empty."""
        with self._condition:
            self._finishing = True
            self._condition.notify()

    def close(self, deadline: float) -> None:
        """Gives the thread until `deadline` (time.monotonic()) to end, then stops it."""
        self._threads.join(deadline - time.monotonic())
        self._threads.end(4 * SLICE_MS / 1000)
        if self._newest is not None:
            logging.warning("weights of version %d did not reach %s", self._newest.version, self._address)

    def _ask_to_end(self) -> None:
        self._stop.set()
        self.finish()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._condition:
                if self._newest is None and not self._finishing:
                    self._condition.wait(WATCH_PERIOD_S)
                publication, self._newest = self._newest, None
                if publication is None and self._finishing:
                    return
            if publication is None and self._lost():
                publication = self._sent
            if publication is not None and not self._deliver(publication):
                with self._condition:
                    self._newest = self._newest or publication  # the then-newest is tried next
                self._stop.wait(SLICE_MS / 1000)

    def _deliver(self, publication: Publication) -> bool:
        """Whether the shard confirmed it, or it can't be sent at all."""
        try:
            encoded = publication.encoded()
        except Exception as error:
            self._report(_explain(error, publication.version))
            return True
        if encoded is None:
            return True
        try:
            self._insert(*encoded)
        except Exception as error:  # whatever a server may answer: this thread has to outlive it
            self.failed += 1
            self._abandoned = True
            if not self._stop.is_set():
                self._patience.waiting(str(error))
                logging.warning(
                    "weights of version %d not accepted by %s, the newest will be tried next: %s",
                    publication.version,
                    self._address,
                    error,
                )
            return False
        self._patience.over()
        self.inserted += 1
        self._sent = publication
        self._state = self._look()
        return True

    def _insert(self, manifest: Manifest, arrays: list[np.ndarray[Any, Any]]) -> None:
        deadline = time.monotonic() + self._deadline_s + manifest.offsets[-1] / BYTES_PER_SECOND
        writer = self._client.trajectory_writer(num_keep_alive_refs=manifest.pieces, validate_items=False)
        try:
            for column in ("manifest", "pieces"):
                writer.configure((column,), num_keep_alive_refs=manifest.pieces, max_chunk_length=1)
            for index, piece in enumerate(cut(manifest, arrays), 1):
                last = {"manifest": manifest.to_bytes()} if index == manifest.pieces else {}
                writer.append({"pieces": piece, **last})
            # Slices from the end: others may come out empty, or hold a None that crashes the process.
            announcement = {"manifest": writer.history["manifest"][-1:]}
            pieces = {"pieces": writer.history["pieces"][-manifest.pieces :]}
            writer.create_item(VARIABLES, 1.0, {**announcement, **pieces})
            self._flush(writer, deadline)
            # Only now: tables work side by side, and the data has to be there when it is announced.
            writer.create_item(MANIFESTS, 1.0, announcement)
            self._flush(writer, deadline)
        finally:
            writer.close()  # does not wait; what it still holds is dropped

    def _flush(self, writer: Any, deadline: float) -> None:
        while True:
            try:
                writer.flush(timeout_ms=SLICE_MS)
                return
            except reverb.errors.DeadlineExceededError:
                if self._stop.is_set() or time.monotonic() > deadline:
                    raise

    def _look(self) -> TableState | None:
        try:
            return table_state(self._client)
        except Exception:  # unreachable, or another program's server: the caller decides
            return None

    def _lost(self) -> bool:
        """Whether the shard no longer holds what it was sent: it was restarted, or a late arrival hides it."""
        if self._sent is None:
            return False
        state = self._look()
        if state is None:
            self._patience.waiting("the shard does not answer")
            return False
        self._patience.over()
        known = self._state
        if (
            known is not None
            and (state.life == known.life and state.size > 0)
            and (state.inserts == known.inserts or (state.inserts > known.inserts and not self._abandoned))
        ):
            return False
        self._abandoned = False
        logging.info("weights of version %d go to %s again: it lost them", self._sent.version, self._address)
        return True


def _explain(error: Exception, version: int) -> Exception:
    if "deleted" in str(error):
        return RuntimeError(
            f"the weights published as version {version} were deleted before they could be copied: they were donated "
            f"to a jitted function. Publish a copy: jax.jit(lambda x: jax.tree.map(jnp.copy, x))(params). ({error})"
        )
    return TypeError(f"the weights published as version {version} can't be sent: {error}")
