"""A role's own process: what happens between its start and its end.

Run as a program it is a plain interpreter that plays one role (`run.start=spawn`); launch.warm forks and calls `play`.
"""

import argparse
import contextlib
import faulthandler
import importlib
import io
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from absl import flags, logging

from agents import collector
from launch import chaos_signal
from launch.processes import RoleRequest, die_with

DUMP_SIGNAL = signal.SIGUSR1  # writes every thread's Python stack to the log, even while C++ holds the thread
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LONGEST_TEXT = 8000  # characters of a result: fits the pipe's buffer, so that writing never waits for a reader


class InjectedError(Exception):
    """As any error of a role would be."""


def resolve(path: str) -> Callable[..., Any]:
    """The object named "module:name"."""
    module, _, name = path.partition(":")
    with collector.held():
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def play(request: RoleRequest, result: int) -> NoReturn:
    """Plays a role to its end, tells why it ended, and ends the process.

    Args:
        request: the role; its environment and log take effect here.
        result: a file descriptor; gets the reason of a normal end, or the last lines of a traceback.
    """
    code = 1
    try:
        os.environ.update(request.environment)
        _open_log(request.log)
        stop = threading.Event()
        _stop_on_signal(stop)
        _configure_jax(request.environment)
        _reseed()
        logging.info("%s starts as process %d.", request.name, os.getpid())
        text = str(resolve(request.function)(pickle.loads(request.assignment), stop) or "")
        logging.info("%s ends: %s", request.name, text or "it was asked to stop.")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        text = str(error)
        logging.info("%s exits: %s", request.name, text)
    except BaseException:
        text = traceback.format_exc()
        print(text, file=sys.stderr)
    with contextlib.suppress(OSError):
        os.write(result, text[-_LONGEST_TEXT:].encode())
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # destructors of servers, samplers and thread pools may wait for ever


def _open_log(path: str) -> None:
    """Makes the log this process's output, with time stamps on what is logged."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(log)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS([sys.argv[0]])  # absl logs nothing below a warning before
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    logging.set_stderrthreshold("info")
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


def _stop_on_signal(stop: threading.Event) -> None:
    """Sets the event at SIGTERM or SIGINT.

    Not from a Python handler: those wait while the main thread is in C++, and Event.set inside one can deadlock with
    the Event.wait it interrupts. The interpreter's C handler writes to a pipe, a thread reads it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while True:
            if any(number in _STOP_SIGNALS for number in os.read(reader, 16)):
                stop.set()

    threading.Thread(target=watch, name="stop-signals", daemon=True).start()
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if chaos_signal.CHAOS_VARIABLE in os.environ:
        signal.signal(chaos_signal.RAISE_SIGNAL, _raise)
        signal.signal(chaos_signal.DELAY_SIGNAL, chaos_signal.delay)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _raise(*_: object) -> NoReturn:
    raise InjectedError("An exception that launch.chaos asked for.")


def _configure_jax(environment: dict[str, str]) -> None:
    """Applies JAX_... variables to a JAX that was imported before they were set (it reads them then)."""
    jax = sys.modules.get("jax")
    if jax is None:
        return
    for name, value in environment.items():
        option = name.lower()
        if name.startswith("JAX_") and option in jax.config.values:
            current = jax.config.values[option]
            if isinstance(current, bool):
                jax.config.update(option, value.lower() in ("1", "true", "yes", "on"))
            elif isinstance(current, int | float):
                jax.config.update(option, type(current)(value))
            else:
                jax.config.update(option, value)


def _reseed() -> None:
    """Gives processes forked from one parent random numbers of their own."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def main() -> None:
    """Plays the role whose pickled request is on standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="process that this one doesn't outlive")
    parser.add_argument("--result", type=int, required=True, help="file descriptor for the reason of the end")
    arguments = parser.parse_args()
    die_with(arguments.parent, signal.SIGKILL)
    play(pickle.loads(sys.stdin.buffer.read()), arguments.result)


if __name__ == "__main__":
    main()
