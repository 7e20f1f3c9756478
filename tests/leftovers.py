"""Finds the processes that a test left behind."""

import os
import time
import uuid

import psutil

TAG = "ANTIPHON_TEST_SESSION"


def tag_environment() -> None:
    """Marks this process's environment, so that children are known even after their parent has died."""
    os.environ[TAG] = uuid.uuid4().hex


def find_leftovers() -> list[psutil.Process]:
    """Living processes that descend from this one, or that inherited its tag."""
    me = psutil.Process()
    found = {child.pid: child for child in me.children(recursive=True)}
    for process in psutil.process_iter():
        try:
            if process.pid != me.pid and process.environ().get(TAG) == os.environ[TAG]:
                found[process.pid] = process
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return [process for process in found.values() if not _is_gone(process) and not _is_resource_tracker(process)]


def wait_for_no_leftovers(known: set[int], timeout_s: float) -> list[psutil.Process]:
    """Gives processes not in `known` (pids) a while to end; returns those that did not."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [process for process in find_leftovers() if process.pid not in known]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def describe(process: psutil.Process) -> str:
    """One line on a process, for a message."""
    try:
        return f"pid {process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"pid {process.pid}"


def _is_gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _is_resource_tracker(process: psutil.Process) -> bool:
    """Multiprocessing keeps one of these until the interpreter ends."""
    try:
        return any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False
