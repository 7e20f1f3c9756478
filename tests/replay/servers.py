"""Reverb servers for tests: in this process, or in one of their own that can be killed."""

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import reverb
import tensorflow as tf

from tests.ports import is_listening

if TYPE_CHECKING:
    from replay.layout import Layout  # at run time it would load JAX in every server process

Signature = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


def make_table(signature: Signature, max_size: int = 1000, queue: bool = False) -> reverb.Table:
    """A table of items, first in first out."""
    specs = {name: tf.TensorSpec(shape, tf.as_dtype(dtype)) for name, (shape, dtype) in signature.items()}
    if queue:
        return reverb.Table.queue("trajectories", max_size, signature=specs)
    # Two selectors: a table whose sampler is its remover stops for good at its first item.
    sampler, remover, limiter = reverb.selectors.Fifo(), reverb.selectors.Fifo(), reverb.rate_limiters.MinSize(1)
    return reverb.Table("trajectories", sampler, remover, max_size, limiter, signature=specs)


def serve(port: int, signature: Signature, **options: Any) -> None:
    """Serves until killed."""
    server = reverb.Server([make_table(signature, **options)], port=port)
    server.wait()


def start_process(port: int, layout: "Layout", **options: Any) -> BaseProcess:
    """A server process; it answers some seconds later."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=(port, layout.signature), kwargs=options, daemon=True)
    process.start()
    return process


def wait_for(*ports: int) -> None:
    """Waits until servers listen on all of these ports: their imports may take a minute where all cores are busy."""
    deadline = time.monotonic() + 200
    for port in ports:
        while not is_listening(port):
            assert time.monotonic() < deadline, f"no server answers on port {port}"
            time.sleep(0.05)


def kill(process: BaseProcess) -> None:
    """SIGKILL, if it still runs."""
    assert process.pid is not None
    if not process.is_alive():
        return
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)


def size(address: str) -> int:
    """Items in the table."""
    return int(reverb.Client(address).server_info(timeout=5)["trajectories"].current_size)


def read(address: str, count: int) -> list[tuple[Any, dict[str, Any]]]:
    """The oldest items, in order: their info, and raw columns [1, ...]. For queues."""
    items = []
    for sample in reverb.Client(address).sample(
        "trajectories", count, emit_timesteps=False, unpack_as_table_signature=True
    ):
        items.append((sample.info, {name: np.asarray(column)[None] for name, column in sample.data.items()}))
    return items
