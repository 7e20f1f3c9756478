"""Small real roles for tests of the processes around them."""

import ctypes
import faulthandler
import os
import socket
import threading
import time

from launch.child import DUMP_SIGNAL
from launch.roles import Assignment


def patient(assignment: Assignment, stop: threading.Event) -> str:
    """Waits to be stopped."""
    stop.wait()
    return ""


def short(assignment: Assignment, stop: threading.Event) -> str:
    """Ends by itself after a second."""
    stop.wait(1.0)
    return "" if stop.is_set() else "it was enough"


def raising(assignment: Assignment, stop: threading.Event) -> str:
    """Fails while the others run."""
    stop.wait(1.0)
    raise RuntimeError("the dog ate it")


def raising_at_stop(assignment: Assignment, stop: threading.Event) -> str:
    """Fails when it is asked to stop."""
    stop.wait()
    raise RuntimeError("nothing was saved")


def stuck(assignment: Assignment, stop: threading.Event) -> str:
    """Is in C for ever and holds the interpreter's lock: no Python code runs any more, in any thread."""
    sleep = ctypes.PyDLL(None).sleep
    while True:
        sleep(1000)


def crashing_at_its_dump(assignment: Assignment, stop: threading.Event) -> str:
    """Doesn't stop, and dies of being asked where it is."""
    faulthandler.unregister(DUMP_SIGNAL)
    while True:
        time.sleep(1000)


def with_child(assignment: Assignment, stop: threading.Event) -> str:
    """Forgets a process of its own."""
    if os.fork() == 0:
        time.sleep(1000)
    stop.wait(1.0)
    return "it was enough"


def computing(assignment: Assignment, stop: threading.Event) -> str:
    """A Reverb server and client and a jitted function, in a process that was forked after they were imported."""
    import jax
    import numpy as np
    import reverb

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = reverb.Server([reverb.Table.queue("numbers", 10)], port=port)
    client = reverb.Client(f"localhost:{port}")
    client.insert([np.float32(21)], {"numbers": 1.0})
    number = next(iter(client.sample("numbers")))[0].data[0]
    text = f"{assignment.name}: {float(jax.jit(lambda x: 2 * x)(number))} {jax.default_backend()} {jax.device_count()}"
    server.stop()
    (assignment.run_directory / assignment.name).write_text(text)
    if assignment.role == "monitor":
        return "it was enough" if not stop.wait(3.0) else ""
    stop.wait()
    return ""
