"""The learning curve's picture."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from launch.curve import Curve, draw_curve, make_figure


def row(step: int, evaluation: float | None = None) -> dict[str, Any]:
    at = {"elapsed": float(step), "environment_steps": 10 * step}
    evaluations = [] if evaluation is None else [{**at, "mean": evaluation}]
    return {**at, "training_return": float(step), "new_return": step + 1.0, "evaluations": evaluations}


def count_pixels(path: Path, color: tuple[int, int, int]) -> int:
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    return int((np.abs(pixels - color).max(axis=-1) < 12).sum())


BLUE, RED = (0x2F, 0x6D, 0xB3), (0xD1, 0x49, 0x5B)


def test_the_picture_shows_what_there_is(tmp_path: Path) -> None:
    curve = Curve()
    for step in range(50):
        curve.add(row(step, evaluation=2.0 * step if step % 10 == 0 else None))
    draw_curve(curve, "a run with a $ in its name", tmp_path / "full.png", target=60.0)
    assert count_pixels(tmp_path / "full.png", BLUE) > 300
    assert count_pixels(tmp_path / "full.png", RED) > 300

    without = Curve()
    for step in range(50):
        without.add(row(step))
    draw_curve(without, "no evaluator", tmp_path / "training.png")
    assert count_pixels(tmp_path / "training.png", BLUE) > 300
    assert count_pixels(tmp_path / "training.png", RED) == 0  # control

    draw_curve(Curve(), "nothing yet", tmp_path / "empty.png")
    assert count_pixels(tmp_path / "empty.png", BLUE) == 0  # control
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.png", "full.png", "training.png"]


def test_a_figure_that_was_drawn_on_gives_the_same_picture(tmp_path: Path) -> None:
    curve, figure = Curve(), make_figure()
    for step in range(50):
        curve.add(row(step, evaluation=float(step)))
        if step % 20 == 0:
            draw_curve(curve, f"step {step}", tmp_path / "again.png", target=60.0, figure=figure)
    draw_curve(curve, "the end", tmp_path / "again.png", figure=figure)
    draw_curve(curve, "the end", tmp_path / "new.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "new.png").read_bytes()


def test_a_long_run_is_thinned_evenly_and_keeps_its_evaluations_ends() -> None:
    curve = Curve(max_rows=8)
    for step in range(100):
        curve.add(row(step, evaluation=float(step)))
    steps = [point[1] for point in curve.training]
    assert 4 <= len(steps) <= 8
    assert len({after - before for before, after in itertools.pairwise(steps)}) == 1
    assert curve.evaluations[-1] == (99.0, 990, 99.0)
    assert len(curve.evaluations) <= 8
    assert len(Curve().training) == 0
