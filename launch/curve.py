"""The learning curve as a picture, small enough to be drawn again and again beside a run."""

import copy
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from launch.run_directory import write_atomically

MAX_ROWS = 1000  # kept of a run: more can't be told apart in a picture this wide

_DOT, _MEAN, _EVALUATION, _TARGET = "#9db8d9", "#2f6db3", "#d1495b", "#7a7a7a"


class Curve:
    """The points of a run's learning curve, thinned as it grows: every second row goes when there are too many."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self.training: list[tuple[float, float, float | None, float]] = []  # elapsed, steps, return of then, mean
        self.evaluations: list[tuple[float, float, float]] = []  # elapsed s, environment steps, mean return
        self._max_rows = max_rows
        self._stride = 1  # rows for one that is kept
        self._rows = 0

    def copy(self) -> "Curve":
        """The points as they are now."""
        return copy.deepcopy(self)

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes one line of metrics.jsonl."""
        for evaluation in row.get("evaluations") or ():
            self.evaluations.append((evaluation["elapsed"], evaluation["environment_steps"], evaluation["mean"]))
        if row.get("training_return") is not None:
            if self._rows % self._stride == 0:
                self.training.append(
                    (row["elapsed"], row["environment_steps"], row.get("new_return"), row["training_return"])
                )
            self._rows += 1
        if len(self.training) > self._max_rows:
            self.training, self._stride = self.training[::2], self._stride * 2
        if len(self.evaluations) > self._max_rows:  # the newest stays
            self.evaluations = self.evaluations[:-1:2] + self.evaluations[-1:]


def make_figure() -> Figure:
    """An empty one to draw curves on, again and again."""
    # Figure and not pyplot: pyplot keeps figures in a global and isn't safe in a thread.
    figure = Figure(figsize=(10, 4.2), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_curve(curve: Curve, title: str, path: Path, target: float | None = None, figure: Figure | None = None) -> None:
    """Draws return against environment steps and against wall time, and replaces the PNG at `path`.

    `figure` is drawn on, and cleared before; None: a new one. Matplotlib remembers for each how large every text was,
    4,096 of them in all: a new one for each picture of a run takes megabytes within an hour.
    """
    figure = figure or make_figure()
    figure.clear()
    left, right = figure.subplots(1, 2, sharey=True)
    last = max([row[0] for row in curve.training] + [row[0] for row in curve.evaluations], default=0.0)
    unit, seconds = next(((u, s) for u, s in (("hours", 3600.0), ("minutes", 60.0)) if last >= 3 * s), ("seconds", 1.0))
    _draw(left, curve, [row[1] for row in curve.training], [row[1] for row in curve.evaluations], target)
    _draw(
        right,
        curve,
        [row[0] / seconds for row in curve.training],
        [row[0] / seconds for row in curve.evaluations],
        target,
    )
    left.set_xlabel("environment steps, all actors together")
    left.xaxis.set_major_formatter(EngFormatter(sep=""))
    left.set_ylabel("return of an episode")
    right.set_xlabel(f"wall time in {unit}")
    if curve.training or curve.evaluations:
        left.legend(loc="best", fontsize=8, framealpha=0.8)
    else:
        left.text(0.5, 0.5, "no episode has ended yet", ha="center", transform=left.transAxes, color=_TARGET)
    figure.suptitle(title, fontsize=11, parse_math=False)  # a preset's name may hold a dollar sign
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def _draw(axes: Axes, curve: Curve, x: Sequence[float], evaluation_x: Sequence[float], target: float | None) -> None:
    dots = [(at, row[2]) for at, row in zip(x, curve.training, strict=True) if row[2] is not None]
    if dots:
        dots_x, dots_y = [dot[0] for dot in dots], [dot[1] for dot in dots]
        axes.scatter(dots_x, dots_y, s=5, color=_DOT, linewidths=0, label="training, mean of one second")
    if x:
        means = [row[3] for row in curve.training]
        axes.plot(x, means, color=_MEAN, linewidth=1.6, label="training, mean of the last 100 episodes")
    if evaluation_x:
        axes.plot(
            evaluation_x,
            [row[2] for row in curve.evaluations],
            color=_EVALUATION,
            linewidth=1.2,
            marker="o" if len(evaluation_x) <= 60 else "",  # more would cover the line
            markersize=3.5,
            label="evaluation (greedy), mean",
        )
    if target is not None:
        axes.axhline(target, color=_TARGET, linewidth=1, linestyle="--", label=f"target {target:g}")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)
