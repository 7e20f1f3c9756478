"""Small real roles for tests of the processes around them."""

import ctypes
import os
import threading
import time

from launch.roles import Assignment


def patient(assignment: Assignment, stop: threading.Event) -> str:
    """Waits to be stopped."""
    print(f"{assignment.name} is there", flush=True)
    stop.wait()
    return ""


def short(assignment: Assignment, stop: threading.Event) -> str:
    """Ends by itself after a second."""
    stop.wait(1.0)
    return "" if stop.is_set() else "it was enough"


def raising(assignment: Assignment, stop: threading.Event) -> str:
    stop.wait(0.3)
    raise RuntimeError("the dog ate it")


def raising_at_stop(assignment: Assignment, stop: threading.Event) -> str:
    stop.wait()
    raise RuntimeError("nothing was saved")


def stuck(assignment: Assignment, stop: threading.Event) -> str:
    """In C++ for ever, holding the interpreter's lock: no Python code runs any more, in any thread."""
    print("stuck now", flush=True)
    ctypes.PyDLL(None).pause()
    while True:
        ctypes.PyDLL(None).sleep(1000)


def with_child(assignment: Assignment, stop: threading.Event) -> str:
    """Has a process of its own that it forgets."""
    if (pid := os.fork()) == 0:
        time.sleep(1000)
    (assignment.run_directory / "forgotten").write_text(str(pid))
    stop.wait()
    return ""
