"""From the thread that acts to the thread that writes: whole blocks, through a bounded queue.

All that takes time on the way to the learner happens behind it: results come off the device, rows are put together from
what an environment showed before and after a step, and Reverb is waited for.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.agent import ActorOutput, TimeStep
from agents.rows import row_of
from replay.asynchronous_writer import AsynchronousWriter
from replay.steps import Array, Steps, Tree

SLICE = 0.2  # seconds of one wait, so that it sees a stop


class Moment(NamedTuple):
    """What some environments [M] showed, and what was done about it."""

    ids: Array  # [M]
    timestep: TimeStep
    output: ActorOutput  # on the device
    memory: Tree  # on the device
    version: int  # of the weights that acted


class Handoff:
    """A queue of blocks. One thread puts, one takes."""

    def __init__(self, moments: int, blocks: int) -> None:
        """`moments` make a block; the queue holds `blocks` of them."""
        self.seconds_waited = 0.0  # by put(), for room
        self._moments = moments
        self._filling: list[Moment] = []
        self._queue: queue.Queue[list[Moment]] = queue.Queue(blocks)

    def put(self, moment: Moment, stop: threading.Event) -> None:
        """Adds a moment; waits while the queue is full, unless `stop` is set: then the block is dropped."""
        self._filling.append(moment)
        if len(self._filling) < self._moments:
            return
        block, self._filling = self._filling, []
        try:
            self._queue.put_nowait(block)
            return
        except queue.Full:
            began = time.monotonic()
        while not stop.is_set():
            try:
                self._queue.put(block, timeout=SLICE)
                break
            except queue.Full:
                continue
        self.seconds_waited += time.monotonic() - began

    def take(self, stop: threading.Event) -> Sequence[Moment] | None:
        """The next block; None when `stop` is set and none is left."""
        while True:
            try:
                return self._queue.get(timeout=SLICE)
            except queue.Empty:
                if stop.is_set():
                    return None


class RowMaker:
    """Puts the rows of every environment together: a step's row is whole when its environment shows what came of it."""

    def __init__(self, environments: int) -> None:
        self._environments = environments
        self._begun = np.zeros(environments, bool)
        self._treedef: Any = None
        self._pending: list[Any] = []  # of each environment, the moment whose outcome is not known yet

    def rows(self, moment: Moment) -> tuple[Steps, Tree, Array]:
        """The rows [M', ...] that the moment completes, the memory beside them, and whose they are [M']."""
        leaves, treedef = jax.tree_util.tree_flatten((moment.timestep, moment.output, moment.memory))
        values = [np.asarray(leaf) for leaf in leaves] + [np.full(len(moment.ids), moment.version, np.int32)]
        if self._treedef is None:
            self._treedef = treedef
            self._pending = [np.zeros((self._environments, *value.shape[1:]), value.dtype) for value in values]
        ids, following = moment.ids, moment.timestep
        begun = self._begun[ids]
        if not begun.all():
            self._begun[ids] = True
            following = jax.tree.map(lambda leaf: leaf[begun], following)
        known = ids[begun]
        *before, version = [pending[known] for pending in self._pending]
        timestep, output, memory = jax.tree_util.tree_unflatten(self._treedef, before)
        for pending, value in zip(self._pending, values, strict=True):
            pending[ids] = value
        return row_of(timestep, output, following, version), memory, known


def write_blocks(
    handoff: Handoff,
    writer: AsynchronousWriter,
    environments: int,
    stop: threading.Event,
    counted: Callable[[int], None],
) -> None:
    """The writing thread: writes what is handed over until `stop` is set and nothing is left.

    `counted` is told of every block how many of its rows are environment steps.
    """
    maker = RowMaker(environments)
    while (block := handoff.take(stop)) is not None:
        steps = 0
        for moment in block:
            row, memory, ids = maker.rows(moment)
            if len(ids):
                writer.append(row, memory, ids)
                steps += int(np.count_nonzero(row.valid))
        counted(steps)
