"""One publication of weights, and the thread that brings the newest one to one shard."""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from replay.background import Patience, Threads
from replay.manifest import Manifest, cut, digest_of, to_host
from replay.newest import MANIFESTS, VARIABLES, TableState, table_state
from replay.stream import Stream

PERIOD_S = 0.05  # seconds between two insertions, at least: fetchers don't ask more often, and each costs time
WATCH_PERIOD_S = 1.0  # seconds between two looks whether a shard still has what it was sent
RETRY_S = 5.0  # seconds until a shard that refuses the weights is tried again
BYTES_PER_SECOND = 20e6  # what an insertion's deadline allows for beside its fixed part

Tree = Any


class Publication:
    """One published tree. The first shard's thread copies it to the host, for all of them."""

    def __init__(self, tree: Tree, publisher: str, sequence: int, version: int) -> None:
        self.version = version
        self._tree = tree
        self._of = (publisher, sequence)
        self._published = time.time()
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
                manifest = Manifest(
                    publisher=publisher,
                    sequence=sequence,
                    version=self.version,
                    leaves=leaves,
                    published=self._published,
                )
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
        self._stream = Stream(address)
        self._condition = threading.Condition()
        self._newest: Publication | None = None  # the mailbox
        self._sent: Publication | None = None  # confirmed by the shard
        self._state: TableState | None = None  # of the shard's table after that; None: unknown
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
        self._threads.end(2.0)
        if self._newest is not None:
            logging.warning("weights of version %d did not reach %s", self._newest.version, self._address)

    def _ask_to_end(self) -> None:
        self._stop.set()
        self.finish()

    def _run(self) -> None:
        inserted = -PERIOD_S
        while not self._stop.wait(0.0 if self._finishing else inserted + PERIOD_S - time.monotonic()):
            with self._condition:
                if self._newest is None and not self._finishing:
                    self._condition.wait(WATCH_PERIOD_S)
                publication, self._newest = self._newest, None
                if publication is None and self._finishing:
                    break
            if publication is None and self._lost():
                publication = self._sent
            if publication is not None and not self._deliver(publication):
                with self._condition:
                    self._newest = self._newest or publication  # the then-newest is tried next
                self._stop.wait(RETRY_S)
            if publication is not None:
                inserted = time.monotonic()
        self._stream.close()

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
            if not self._stop.is_set():
                logging.warning("weights of version %d refused by %s: %s", publication.version, self._address, error)
                self.failed += 1
            return False
        self._patience.over()
        self.inserted += 1
        self._sent = publication
        self._state = self._look()
        return True

    def _insert(self, manifest: Manifest, arrays: list[np.ndarray[Any, Any]]) -> None:
        announcement = manifest.to_bytes()
        columns = {"manifest": len(announcement), "pieces": manifest.piece}
        writer = self._stream.open(columns, steps=manifest.pieces)
        for index, piece in enumerate(cut(manifest, arrays), 1):
            last = {"manifest": announcement} if index == manifest.pieces else {}
            writer.append({"pieces": piece, **last})
        # Slices from the end: others may come out empty, or hold a None that crashes the process.
        announcing = {"manifest": writer.history["manifest"][-1:]}
        data = {"pieces": writer.history["pieces"][-manifest.pieces :]}
        writer.create_item(VARIABLES, 1.0, {**announcing, **data})
        self._confirm(manifest)
        # Only now: tables work side by side, and the data has to be there when it is announced.
        writer.create_item(MANIFESTS, 1.0, announcing)
        self._confirm(manifest)
        self._stream.clear()

    def _confirm(self, manifest: Manifest) -> None:
        """Waits until the shard has it; says so at every deadline it misses. What is under way can't be called back:
        it arrives when the shard is there again, and the newest right after it.
        """
        allowed = self._deadline_s + manifest.offsets[-1] / BYTES_PER_SECOND
        deadline = time.monotonic() + allowed
        while not self._stream.is_confirmed():
            if self._stop.is_set():
                raise TimeoutError("stopped")
            if time.monotonic() > deadline:
                deadline = time.monotonic() + allowed
                logging.warning(
                    "weights of version %d not accepted by %s within %.1f s: it gets the newest when it answers again",
                    manifest.version,
                    self._address,
                    allowed,
                )
                self.failed += 1

    def _look(self) -> TableState | None:
        try:
            return table_state(self._stream.client)
        except Exception:  # unreachable, or another program's server: the caller decides
            return None

    def _lost(self) -> bool:
        """Whether the shard no longer holds what it was sent, because it was restarted or emptied."""
        if self._sent is None:
            return False
        state = self._look()
        if state is None:
            self._patience.waiting("the shard does not answer")
            return False
        self._patience.over()
        known = self._state
        if known is not None and state.life == known.life and state.size > 0 and state.inserts >= known.inserts:
            return False
        logging.info("weights of version %d go to %s again: it lost them", self._sent.version, self._address)
        return True


def _explain(error: Exception, version: int) -> Exception:
    if "deleted" in str(error):
        return RuntimeError(
            f"the weights published as version {version} were deleted before they could be copied: they were donated "
            f"to a jitted function. Publish a copy: jax.jit(lambda x: jax.tree.map(jnp.copy, x))(params). ({error})"
        )
    return TypeError(f"the weights published as version {version} can't be sent: {error}")
