"""Weights through Reverb: every shard holds the newest ones, in a table of its own.

The learner's `VariablePublisher` inserts them into every shard; an actor's `VariableFetcher` asks its own shard whether
there are newer ones, and downloads only those. Neither makes its caller wait. Two items travel for each publication:
the data (a manifest, and the leaves as pieces of bytes), and after it the manifest alone, which a fetcher reads first.
"""

import dataclasses
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import reverb
from absl import logging

from replay.background import Patience, Threads
from replay.manifest import Leaf, Manifest, VariableMismatch, check, describe, join
from replay.newest import MANIFESTS, VARIABLES, TableState, make_variables_tables, table_state
from replay.publication import Publication, ShardPublisher, Tree

__all__ = [
    "MANIFESTS",
    "VARIABLES",
    "PublisherCounts",
    "VariableFetcher",
    "VariableMismatch",
    "VariablePublisher",
    "make_variables_tables",
]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublisherCounts:
    """What became of the publications so far; one entry a shard where it says so."""

    published: int
    inserted: tuple[int, ...]  # confirmed by the shard, those sent again after a restart included
    replaced: tuple[int, ...]  # by a newer one before their turn came
    failed: tuple[int, ...]  # attempts that missed their deadline or were refused


class VariablePublisher:
    """Publishes the newest weights to every shard, from a thread and a mailbox of one for each.

    A shard that is gone stalls neither the caller nor the others. It gets the newest weights when it is back, even
    if nothing newer is published.
    """

    def __init__(self, addresses: Sequence[str], *, deadline_s: float = 10.0) -> None:
        """`deadline_s` is what an insertion may take, beside a second for each 20 MB; after it the newest is tried."""
        self._name = secrets.token_hex(8)
        self._published = 0
        self._errors: list[Exception] = []
        self._shards = [ShardPublisher(address, deadline_s, self._errors.append) for address in addresses]

    def publish(self, tree: Tree, version: int) -> None:
        """Hands over weights; takes microseconds, never waits. A publication whose turn hasn't come is replaced.

        The thread reads the arrays later, so they must stay as they are: numpy arrays must not be written to, and jax
        arrays must not be donated. A learner that donates its state publishes a copy, for which one jitted
        `jax.tree.map(jnp.copy, params)` is the cheapest for the caller (or an output more of its jitted step).

        Raises:
            TypeError, RuntimeError: an earlier publication couldn't be read: it wasn't a pytree of arrays of numbers,
                or it was donated.
        """
        if self._errors:
            raise self._errors.pop(0)
        self._published += 1
        publication = Publication(tree, self._name, self._published, version)
        for shard in self._shards:
            shard.put(publication)

    @property
    def counts(self) -> PublisherCounts:
        """What became of the publications so far."""
        return PublisherCounts(
            published=self._published,
            inserted=tuple(shard.inserted for shard in self._shards),
            replaced=tuple(shard.replaced for shard in self._shards),
            failed=tuple(shard.failed for shard in self._shards),
        )

    def close(self, timeout: float) -> None:
        """Sends what was published last, for `timeout` seconds at most, and stops. Logs which shards lack it."""
        deadline = time.monotonic() + timeout
        for shard in self._shards:
            shard.finish()
        for shard in self._shards:
            shard.close(deadline)


class VariableFetcher:
    """Keeps an actor's weights up to date from its shard, in the background. No call of it waits, but `wait`."""

    def __init__(self, address: str, structure: Tree, *, period_s: float = 0.05) -> None:
        """Expects weights like `structure`: a pytree of arrays, of `jax.ShapeDtypeStruct`s or of Python numbers.

        `period_s` is the time between two questions for the version.
        """
        self.address = address
        self.version = -1  # of the weights that newest() gave last
        self.bytes_downloaded = 0  # manifests included
        self.delay_s = float("nan")  # from publish() to here, of what was fetched last; as exact as the clocks agree
        self.held = False  # set it, and nothing is asked for until it is cleared
        self._want: tuple[Leaf, ...] = describe(structure)
        self._treedef = jax.tree_util.tree_structure(structure)
        self._period_s = period_s
        self._condition = threading.Condition()
        self._stop = threading.Event()
        self._fetched: tuple[Manifest, Tree] | None = None
        self._given: Manifest | None = None  # what newest() gave last
        self._seen: TableState | None = None  # of the shard's table when it was last looked into
        self._mismatch = ""
        self._heard = 0.0  # when the shard last answered with weights
        self._doing = "asking for the version"
        self._threads = Threads(self._stop.set)

    def start(self) -> None:
        """Starts to fetch."""
        self._client = reverb.Client(self.address)
        self._heard = time.monotonic()
        self._threads.start(self._run, f"fetch-{self.address}")
        self._threads.start(self._watch, f"fetch-watch-{self.address}")

    def newest(self) -> tuple[Tree, int] | None:
        """Weights (read-only numpy arrays in the structure's pytree) and their version; None if nothing is newer than
        what was given last.

        Raises:
            VariableMismatch: what is published does not fit the structure.
        """
        with self._condition:
            self._raise_mismatch()
            if self._fetched is None or self._fetched[0] is self._given:
                return None
            self._given, tree = self._fetched
            self.version = self._given.version
            return tree, self.version

    def wait(self, timeout: float, stop: threading.Event | None = None) -> bool:
        """Waits for the first weights, until `timeout` seconds are over or `stop` is set; whether they are there.

        Raises:
            VariableMismatch: as newest().
        """
        deadline = time.monotonic() + timeout
        with self._condition:
            while self._fetched is None and time.monotonic() < deadline and not (stop and stop.is_set()):
                self._raise_mismatch()
                self._condition.wait(min(0.1, max(0.0, deadline - time.monotonic())))
            self._raise_mismatch()
            return self._fetched is not None

    @property
    def fetched_version(self) -> int:
        """Of the weights that newest() would give; -1 before the first."""
        with self._condition:
            return -1 if self._fetched is None else self._fetched[0].version

    def close(self, timeout: float = 5.0) -> None:
        """Stops. A download from a shard that is gone can't be cancelled: its thread is left to itself and logged."""
        if not self._threads.end(timeout):
            logging.warning("a thread for weights from %s is left behind: %s", self.address, self._doing)

    def _raise_mismatch(self) -> None:
        if self._mismatch:
            raise VariableMismatch(self._mismatch)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            pause = self._period_s
            if self.held:
                self._heard = time.monotonic()
                continue
            try:
                self._look()
            except Exception as error:  # the shard is gone, or answers nonsense: neither may end this thread
                pause = 1.0
                self._doing = f"failed with: {error}"
                if not isinstance(error, reverb.errors.DeadlineExceededError):
                    logging.warning("weights from %s: %s", self.address, error)

    def _watch(self) -> None:
        """Speaks for the other thread, which may be blocked in a call."""
        patience = Patience(f"weights from {self.address}")
        while not self._stop.wait(1.0):
            if time.monotonic() - self._heard > 1.0:
                patience.waiting(self._doing)
            else:
                patience.over()

    def _look(self) -> None:
        asked = time.monotonic()
        self._doing = "asking for the version"
        state = table_state(self._client)
        if state.size == 0:
            self._doing = "nothing has been published yet"
            return
        self._heard = asked
        if state == self._seen:
            return
        self._doing = "reading the manifest"
        announced = Manifest.from_bytes(self._sample(MANIFESTS)[0])
        if self._is_newer(announced):
            if not self._fits(announced):
                self._seen = state
                return
            self._doing = f"downloading version {announced.version}"
            if not self._download(announced):
                return  # and look again
        self._seen = state

    def _download(self, announced: Manifest) -> bool:
        """Whether the weights in hand are now at least as new as `announced`."""
        encoded, pieces = self._sample(VARIABLES)
        manifest = Manifest.from_bytes(encoded)
        if not self._is_newer(manifest) or not self._fits(manifest):
            return False
        tree = jax.tree_util.tree_unflatten(self._treedef, join(manifest, pieces))
        with self._condition:
            self._fetched, self._mismatch = (manifest, tree), ""
            self.delay_s = time.time() - manifest.published
            self._condition.notify_all()
        return not self._is_newer(announced)

    def _sample(self, table: str) -> Sequence[np.ndarray[Any, Any]]:
        sample = next(iter(self._client.sample(table, emit_timesteps=False)))
        self.bytes_downloaded += sum(column.nbytes for column in sample.data)
        self._heard = time.monotonic()
        return [sample.data[0][0], *sample.data[1:]]

    def _is_newer(self, manifest: Manifest) -> bool:
        """Than the weights in hand. Another publisher's always are: a learner that was restarted may be behind."""
        if self._fetched is None:
            return True
        have = self._fetched[0]
        return manifest.publisher != have.publisher or manifest.sequence > have.sequence

    def _fits(self, manifest: Manifest) -> bool:
        try:
            check(manifest.leaves, self._want, self.address)
        except VariableMismatch as mismatch:
            with self._condition:
                self._mismatch = str(mismatch)
                self._condition.notify_all()
            return False
        return True
