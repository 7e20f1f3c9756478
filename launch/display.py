"""The run in the launcher's terminal: a live view, or plain lines where there is none. Loads no numeric library."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from absl import logging
from rich.console import Console, RenderableType
from rich.live import Live

from launch.panels import make_view, plain_line, summary_lines
from launch.run_directory import RunDirectory
from launch.run_state import RunStatus, read_status

LIVE_PERIOD = 0.5  # seconds between two pictures
PLAIN_PERIOD = 5.0  # seconds between two lines


class Process(Protocol):
    """What the launcher knows of one role's process; `code` is its exit code once it is gone."""

    @property
    def status(self) -> str: ...  # noqa: D102
    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def code(self) -> int | None: ...  # noqa: D102


class Display:
    """Shows a run until it is closed, in a thread of its own; then says in a few lines how it ended.

    Reads the run's status.json, which the monitor replaces once a second.
    """

    def __init__(self, run_directory: Path, preset: str, console: Console | None = None) -> None:
        self._directory, self._preset = RunDirectory(run_directory), preset
        self._processes: Mapping[str, Process] = {}
        self._console = console or Console()
        self._began = time.time()
        self._report: RunStatus | None = None
        self._trouble = ""  # why the status can't be read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, processes: Mapping[str, Process]) -> None:
        """Tells how the processes are, by name ("actor-3"); the first time begins the view. Returns at once."""
        self._processes = processes
        if self._thread.ident is None:
            self._thread.start()

    def close(self, reason: str = "") -> None:
        """Ends the view and prints the summary. `reason` is why the run ended, where the monitor doesn't know."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        self._look()
        for number, line in enumerate(summary_lines(self._report, self._directory, self._preset, reason)):
            # A path that is wrapped can't be copied; in a file no line should be.
            whole = number > 0 or not self._console.is_terminal
            self._console.print(line, highlight=False, markup=False, soft_wrap=whole)

    def _run(self) -> None:
        # FORCE_COLOR makes Rich take a file for a terminal, so the file is asked too.
        if self._console.is_terminal and self._console.file.isatty() and not self._console.is_dumb_terminal:
            self._show_live()
        else:
            self._print_lines()

    def _look(self) -> None:
        try:
            self._report, self._trouble = read_status(self._directory.status) or self._report, ""
        except (OSError, ValueError) as error:
            self._trouble = str(error)

    def _show_live(self) -> None:
        # Without its own refreshing thread: this one draws. Transient: the summary takes the view's place.
        with (
            Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop") as live,
            _log_above_the_view(),
        ):
            while not self._stop.wait(LIVE_PERIOD):
                self._look()
                live.update(self._view(), refresh=True)

    def _view(self) -> RenderableType:
        return make_view(
            self._report,
            self._directory.path,
            self._preset,
            self._processes,
            time.time(),
            self._began,
            width=self._console.width,
            height=self._console.height,
            ascii_only=not self._console.encoding.lower().startswith("utf"),
            trouble=self._trouble,
        )

    def _print_lines(self) -> None:
        said: tuple[str, ...] = ()
        while not self._stop.wait(PLAIN_PERIOD):
            self._look()
            print(plain_line(self._report, self._processes, time.time() - self._began, self._trouble),
                  file=self._console.file, flush=True)  # fmt: skip
            advice = self._report.advice if self._report else ()
            for line in advice if advice != said else ():
                print(f"  nothing moves: {line}", file=self._console.file, flush=True)
            said = advice


@contextlib.contextmanager
def _log_above_the_view() -> Iterator[None]:
    """Live takes sys.stderr over, so that what is written there appears above the view instead of breaking it. absl's
    handler has kept the sys.stderr of before.
    """
    handler = logging.get_absl_handler().python_handler
    before = handler.setStream(sys.stderr)
    try:
        yield
    finally:
        if before is not None:
            handler.setStream(before)
