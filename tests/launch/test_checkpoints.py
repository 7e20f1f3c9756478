"""The learner's checkpoints: what comes back, what is skipped and why, and what is never touched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from launch.checkpoints import LearnerCheckpoints
from launch.learner_manifests import folder_of, manifest_of, read_manifest, steps_in


def state_of(step: int) -> dict[str, Any]:
    return {"params": {"w": jnp.arange(2000.0) + step}, "key": jnp.uint32([7, step]), "count": jnp.int32(step)}


def saved(root: Path, *steps: int, kept: int = 3) -> Path:
    checkpoints = LearnerCheckpoints(root, kept=kept)
    for step in steps:
        checkpoints.save(step, state_of(step))
    checkpoints.close()
    return root


def restored_step(root: Path) -> int | None:
    checkpoints = LearnerCheckpoints(root, kept=3)
    found = checkpoints.restore(state_of(0))
    checkpoints.close()
    if found is None:
        return None
    state, step = found
    np.testing.assert_array_equal(state["params"]["w"], state_of(step)["params"]["w"])
    np.testing.assert_array_equal(state["key"], state_of(step)["key"])
    return step


def test_the_newest_comes_back_and_the_oldest_go(tmp_path: Path) -> None:
    assert restored_step(tmp_path) is None
    stranger = tmp_path / "notes" / "mine"
    stranger.parent.mkdir()
    stranger.write_text("mine")
    saved(tmp_path, 10, 20, 30, 40, kept=2)
    assert steps_in(tmp_path) == [30, 40]
    assert {path.name for path in tmp_path.iterdir()} == {"30", "30.json", "40", "40.json", "notes"}
    assert restored_step(tmp_path) == 40
    assert stranger.read_text() == "mine"


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def remove(root: Path) -> None:
    largest(folder_of(root, 20)).unlink()


def cut(root: Path) -> None:
    path = largest(folder_of(root, 20))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.99)])


def flip(root: Path) -> None:
    path = largest(folder_of(root, 20))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def half_written(root: Path) -> None:
    manifest_of(root, 20).unlink()


def no_manifest(root: Path) -> None:
    manifest_of(root, 20).write_text("{")


@pytest.mark.parametrize("damage", [remove, cut, flip, half_written, no_manifest])
def test_a_damaged_one_is_skipped_and_written_anew(damage: Callable[[Path], None], tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    damage(tmp_path)
    assert restored_step(tmp_path) == 10
    checkpoints = LearnerCheckpoints(tmp_path, kept=3)
    checkpoints.restore(state_of(0))
    checkpoints.save(20, state_of(20))  # it comes by there again
    checkpoints.close()
    assert restored_step(tmp_path) == 20


def test_none_that_is_whole_is_an_error(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    flip(tmp_path)
    with pytest.raises(RuntimeError, match=r"None of the learner's checkpoints in .* is whole \(steps \[20\]"):
        restored_step(tmp_path)


def test_a_step_that_is_saved_again_is_as_new_as_can_be(tmp_path: Path) -> None:
    before = read_manifest(saved(tmp_path, 20), 20)
    after = read_manifest(saved(tmp_path, 20), 20)
    assert before is not None
    assert after is not None
    assert after.saved_at > before.saved_at
    assert after.files == before.files
    assert restored_step(tmp_path) == 20


def test_a_disk_that_takes_nothing_keeps_those_before(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    folder_of(tmp_path, 20).write_text("in the way, as a full disk would be")
    saved(tmp_path, 20)
    assert restored_step(tmp_path) == 10
