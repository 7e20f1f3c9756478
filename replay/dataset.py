"""Reads batches from all shards at once and puts them on the learner's devices, ahead of the learner.

Each shard has a slot of its own in a tf.data interleave, with a thread of its own, and answers in sub-batches; a batch
is made of whichever come first. A shard that is empty or gone blocks its slot and nobody else's. Reverb's sampler
resumes by itself when a server is back on its port (measured on 0.11.0: within 10 s), so a slot is never remade.
Only at its start a sampler asks its server for the table's signature, for up to 30 s which nothing can end; so a slot
first waits until something listens at its address, and does so in its own thread.
"""

import dataclasses
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import reverb
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import cancellation, context, execute

from replay.background import Threads
from replay.importance import HostSamples, ShardMasses
from replay.layout import ROWS, Layout
from replay.placing import Placer
from replay.plan import ShardPlan, sub_batch
from replay.presence import Presence
from replay.reachable import listens
from replay.steps import SampleInfo
from replay.tables import TRAJECTORIES, to_tensor_specs

ndarray = np.ndarray[Any, Any]
Dataset = Any  # tf.data.Dataset, which is generic for the type checker only
RETRY_S = 1.0  # pause before the datasets are made anew after a passing error
CONNECT_S = 0.5  # between two looks whether a shard is up, and for each of them
LARGE_ITEM = 16 << 10  # bytes, from which on items aren't put into sub-batches
PASSING = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplayBatch:
    """A batch of sequences, already on the devices, and where they came from."""

    arrays: Mapping[str, Any]  # jax, the items' raw columns [B, ...], for Layout.assemble
    info: SampleInfo  # jax [B]
    samples: HostSamples  # numpy [B]
    version_mean: float  # of the weights that chose the valid actions; nan where there are none

    @property
    def shard(self) -> ndarray:
        """[B] int32, the shard that owns each item."""
        return self.samples.shard

    @property
    def key(self) -> ndarray:
        """[B] uint64, the item's key in its shard."""
        return self.samples.key


class ReplayReader:
    """Batches from all shards, kept ready by a background thread. One thread calls next()."""

    def __init__(
        self,
        addresses: Sequence[str],
        layout: Layout,
        plan: ShardPlan,
        batch_size: int,
        *,
        samples_in_flight: int,
        prefetch: int,
        sharding: jax.sharding.Sharding | None = None,
    ) -> None:
        """Starts reading. No shard needs to be up yet.

        Args:
            addresses: "host:port" of every shard, in the same order for everybody.
            layout: of the items.
            plan: of the shards.
            batch_size: items in a batch that this process reads.
            samples_in_flight: items that each shard's dataset asks for ahead; a queue's never asks for more than its
                part of a batch, so that what is read is fresh.
            prefetch: batches kept ready on the devices.
            sharding: where arrays go, with the batch on axis 0; None: to the default device. If it spans devices of
                other processes, this process's batch is its part of the global one.
        """
        self._addresses = tuple(addresses)
        self._layout = layout
        self._masses = ShardMasses(
            len(addresses), exponent=plan.priority_exponent, prioritized=plan.prioritized, each_once=plan.queue
        )
        self._placer = Placer(sharding)
        self._columns = sorted(layout.signature)  # the order in which tf.data flattens a dict
        self._batch_size = batch_size
        if plan.queue:
            samples_in_flight = min(samples_in_flight, math.ceil(batch_size / len(addresses)))
        tf.config.set_visible_devices([], "GPU")
        self._presence = Presence(addresses)
        self._ready: queue.Queue[ReplayBatch] = queue.Queue(max(1, prefetch))
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._dataset = make_dataset(
            addresses, layout, plan, batch_size, samples_in_flight=samples_in_flight, stop=self._stop
        )
        self._cancellation = cancellation.CancellationManager()
        self.waited_s = 0.0  # that next() has waited for batches so far
        self._threads = Threads(self._ask_to_end)
        self._threads.start(self._run, "replay reader")
        self._threads.start(self._watch, "replay reader's watch")

    @property
    def stalled(self) -> tuple[str, ...]:
        """Addresses of the shards that have given nothing for a while, though they were asked."""
        return self._presence.missing()

    def next(self, timeout_s: float) -> ReplayBatch | None:
        """The next batch, or None if there is none within `timeout_s`. Signals are handled while it waits.

        Raises:
            RuntimeError: reading has ended for good, e.g. a shard's items have another layout.
        """
        started = time.monotonic()
        try:
            return self._ready.get_nowait()
        except queue.Empty:
            pass
        try:
            while True:
                if self._error is not None:
                    raise RuntimeError(f"Reading replay from {', '.join(self._addresses)} failed.") from self._error
                left = timeout_s - (time.monotonic() - started)
                try:
                    return self._ready.get(timeout=min(max(left, 0.001), 1.0))
                except queue.Empty:
                    if left <= 0:
                        return None
        finally:
            self.waited_s += time.monotonic() - started

    def example(self) -> ReplayBatch:
        """A batch of zeros, placed as the others are: to compile for."""
        size, place = self._batch_size, self._placer.place
        columns = {
            name: np.zeros((size, *shape), dtype) for name, (shape, dtype) in sorted(self._layout.signature.items())
        }
        samples = HostSamples(
            shard=np.zeros(size, np.int32),
            key=np.zeros(size, np.uint64),
            probability=np.ones(size, np.float64),
            table_size=np.ones(size, np.int64),
            priority=np.ones(size, np.float64),
            times_sampled=np.ones(size, np.int32),
        )
        info = SampleInfo(np.ones(size, np.float32), np.ones(size, np.float32), np.ones(size, np.int32))
        return ReplayBatch(
            arrays={name: place(column) for name, column in columns.items()},
            info=SampleInfo(*map(place, info)),
            samples=samples,
            version_mean=math.nan,
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Stops reading. What was fetched ahead is lost, of a queue too."""
        if not self._threads.end(timeout_s):
            logging.warning("the replay reader is left behind: it waits for %s", ", ".join(self._addresses))

    def _ask_to_end(self) -> None:
        self._stop.set()
        self._cancellation.start_cancel()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read()
            except PASSING as error:
                if not self._stop.is_set():
                    logging.warning("reading from %s again after: %s", ", ".join(self._addresses), error)
                    self._stop.wait(RETRY_S)
            except Exception as error:  # told to the learner, which can't go on without data
                self._error = error
                return

    def _read(self) -> None:
        following = self._follow(iter(self._dataset))
        while not self._stop.is_set():
            batch = self._convert(following())
            self._presence.answered(np.bincount(batch.shard, minlength=len(self._addresses)))
            with self._presence.paused():
                self._put(batch)

    def _follow(self, iterator: Any) -> Callable[[], list[tf.Tensor]]:
        """What gives the dataset's next element, flat, and can be ended from outside.

        A plain next() can't: with all shards gone it would keep its thread for ever. And a tf.function, the public way
        to cancel one, costs a tenth of a millisecond more each time.
        """
        specs = tf.nest.flatten(self._dataset.element_spec)
        attributes = ("output_types", [spec.dtype.as_datatype_enum for spec in specs],
                      "output_shapes", [spec.shape for spec in specs])  # fmt: skip

        def following() -> list[tf.Tensor]:
            return list(
                execute.execute_with_cancellation(
                    "IteratorGetNext", len(specs), [iterator._iterator_resource], attributes, context.context(),
                    self._cancellation,
                )
            )  # fmt: skip

        return following

    def _put(self, batch: ReplayBatch) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(batch, timeout=0.2)
                return
            except queue.Full:
                continue

    def _convert(self, flat: list[tf.Tensor]) -> ReplayBatch:
        host = [self._flat(tensor) for tensor in flat]
        shard, info = host[0], reverb.SampleInfo(*host[1 : 1 + len(reverb.SampleInfo._fields)])
        columns = dict(zip(self._columns, host[1 + len(info) :], strict=True))
        samples = HostSamples(
            shard=shard,
            key=info.key,
            probability=info.probability,
            table_size=info.table_size,
            priority=info.priority,
            times_sampled=info.times_sampled,
        )
        place = self._placer.place
        return ReplayBatch(
            arrays={name: place(column) for name, column in columns.items()},
            info=SampleInfo(*map(place, self._masses.weigh(samples))),
            samples=samples,
            version_mean=_version_mean(self._layout, columns),
        )

    def _flat(self, tensor: tf.Tensor) -> ndarray:
        """A column of an element of make_dataset() as [B, ...], without the copy that Tensor.numpy() makes."""
        array = np.asarray(memoryview(tensor))
        whole = array.shape[0] == self._batch_size
        return array if whole else array.reshape(self._batch_size, *array.shape[2:])

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            self._presence.log()


def make_dataset(
    addresses: Sequence[str],
    layout: Layout,
    plan: ShardPlan,
    batch_size: int,
    *,
    samples_in_flight: int,
    stop: threading.Event,
) -> Dataset:
    """Elements (shard, info, columns) of whichever shards answer first.

    Each [sub-batches, sub-batch, ...], or [B, ...] where sub-batches are of one item or of a whole batch: batching is a
    copy each time. Large items come one by one, for that copy would cost more than going through the interleave does.
    """
    shards = len(addresses)
    large = layout.item_nbytes >= LARGE_ITEM
    piece = 1 if large else sub_batch(plan.queue, shards, batch_size)
    specs = to_tensor_specs(layout)

    def samples(address: tf.Tensor) -> Dataset:
        return reverb.TrajectoryDataset(
            address,
            TRAJECTORIES,
            dtypes={name: spec.dtype for name, spec in specs.items()},
            shapes={name: spec.shape for name, spec in specs.items()},
            max_in_flight_samples_per_worker=samples_in_flight,
            num_workers_per_iterator=1,
        )

    def slot(shard: tf.Tensor, address: tf.Tensor) -> Dataset:
        up = tf.data.Dataset.from_tensors(address).map(lambda name: _when_up(name, stop))
        # flat_map makes the sampler when it is first asked for an element, which is in the slot's own thread.
        if piece == 1:
            return up.flat_map(samples).map(lambda sample: (shard, sample.info, sample.data))
        return (
            up.flat_map(samples)
            .batch(piece, drop_remainder=True)
            .map(lambda sample: (tf.fill([piece], shard), sample.info, sample.data))
        )

    slots: Dataset = tf.data.Dataset.from_tensor_slices((np.arange(shards, dtype=np.int32), list(addresses)))
    dataset = slots.interleave(slot, cycle_length=shards, num_parallel_calls=shards, deterministic=False)
    if piece == 1 or piece < batch_size:
        dataset = dataset.batch(batch_size // piece, drop_remainder=True)
    if not plan.queue:  # whose items shouldn't wait
        dataset = dataset.prefetch(1)  # batches are put together in a thread that holds no GIL
    options = tf.data.Options()
    options.threading.private_threadpool_size = shards + 1  # a slot that waits for its shard takes one
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    options.deterministic = False
    return dataset.with_options(options)


def _when_up(address: tf.Tensor, stop: threading.Event) -> Any:
    """The address, once something listens there."""

    def wait(name: bytes) -> bytes:
        while not stop.is_set():
            if listens(name.decode(), CONNECT_S):
                return name
            stop.wait(CONNECT_S)
        raise InterruptedError("closed before the shard was up")

    checked = tf.numpy_function(wait, [address], tf.string)
    checked.set_shape([])
    return checked


def _version_mean(layout: Layout, columns: Mapping[str, ndarray]) -> float:
    rows = columns[ROWS].view(layout.row_dtype)[..., : layout.new_rows, 0]
    valid = rows["valid"]
    count = np.count_nonzero(valid)
    return float(np.sum(rows["version"], where=valid, dtype=np.float64) / count) if count else math.nan
