"""Which parts are tied into a checkpoint of the run, and what is gone on from."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from configs.experiment import Experiment
from configs.presets import apex_catch, impala_catch
from configs.serialization import to_json
from launch import learner_manifests, resume
from launch.run_checkpoints import KEPT, RunCheckpoints
from launch.run_directory import RunDirectory
from replay import shard_manifests
from replay.fingerprints import fingerprints

CLOCK = itertools.count(1000)


class Saved:
    """A run's folder, with parts that are saved by hand."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.run, self.experiment = RunDirectory(path), experiment
        self.run.checkpoints.mkdir()
        self.run.config.write_text(to_json(experiment))
        self.checkpoints = RunCheckpoints(self.run, experiment)

    def learner(self, step: int) -> None:
        root = self.run.checkpoints / "learner"
        folder = learner_manifests.folder_of(root, step)
        folder.mkdir(parents=True)
        (folder / "weights").write_text(f"of step {step}")
        learner_manifests.write_manifest(
            root,
            learner_manifests.LearnerManifest(step=step, saved_at=float(next(CLOCK)), files=fingerprints(folder)),
        )
        self.look(step)

    def look(self, step: int) -> None:
        """The monitor writes down where the learner is."""
        now = float(next(CLOCK))
        self.run.status.write_text(json.dumps({"time": now, "state": {"learner_steps": step}}))
        with self.run.metrics.open("a") as file:
            file.write(json.dumps({"time": now, "learner_steps": step}) + "\n")

    def shard(self, index: int, number: int) -> None:
        folder = shard_manifests.folder_of(self.run.checkpoints / f"replay-{index}", number)
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "items").write_text(f"of {index}, {number}")
        manifest = shard_manifests.Manifest(
            saved_at=float(next(CLOCK)), items={"trajectories": 10 * number}, plan={}, layout={}, name="a",
            files=fingerprints(folder / "data"),
        )  # fmt: skip
        (folder / shard_manifests.MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest)))

    def all(self, number: int) -> None:
        self.learner(100 * number)
        for index in range(self.experiment.topology.shards):
            self.shard(index, number)

    def go_back(self, after: Experiment | None = None) -> str:
        return "\n".join(resume.go_back(self.run, self.experiment, after or self.experiment))

    def left(self) -> list[str]:
        root = self.run.checkpoints
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name in ("weights", "items"))

    def learner_steps(self) -> tuple[int, list[int], list[int]]:
        """Of the status, of the metrics and of what was set aside."""
        metrics, aside = (
            [json.loads(line)["learner_steps"] for line in path.read_text().splitlines()]
            for path in (self.run.metrics, self.run.path / resume.SET_ASIDE)
        )
        return json.loads(self.run.status.read_text())["state"]["learner_steps"], metrics, aside


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path, apex_catch())


def test_parts_are_tied_when_everybody_has_saved_anew(saved: Saved) -> None:
    saved.learner(100)
    saved.shard(0, 1)
    assert saved.checkpoints.tie(all_new=True) is None
    saved.shard(1, 1)
    tied = saved.checkpoints.tie(all_new=True)
    assert tied is not None
    assert (tied.learner.step, [part.items for part in tied.shards]) == (100, [{"trajectories": 10}] * 2)
    assert tied.config["name"] == "apex_catch"
    assert tied.status is not None
    assert tied.status["state"]["learner_steps"] == 100
    saved.learner(200)
    saved.shard(0, 2)
    assert saved.checkpoints.tie(all_new=True) is None  # the other shard's is of an earlier time
    last = saved.checkpoints.tie(all_new=False)  # as when all have ended
    assert last is not None
    assert (last.learner.step, [part.number for part in last.shards]) == (200, [2, 1])
    assert saved.checkpoints.tie(all_new=False) is None  # nothing new


def test_a_queue_has_no_part_in_it(tmp_path: Path) -> None:
    saved = Saved(tmp_path, impala_catch())
    saved.learner(100)
    tied = saved.checkpoints.tie(all_new=True)
    assert tied is not None
    assert tied.shards == ()


def test_the_newest_manifests_are_kept_and_go_on_after_a_restart(saved: Saved) -> None:
    for number in range(1, KEPT + 3):
        saved.all(number)
        again = RunCheckpoints(saved.run, saved.experiment)  # another launcher
        assert again.tie(all_new=True) is not None
        assert again.tie(all_new=True) is None
    steps = [manifest.learner.step for manifest in saved.checkpoints.newest_first()]
    assert steps == [100 * number for number in range(KEPT + 2, 2, -1)]


def test_what_is_newer_than_the_checkpoint_is_set_aside(saved: Saved) -> None:
    saved.all(1)
    saved.checkpoints.tie(all_new=True)
    saved.learner(200)  # then the machine went down
    saved.shard(1, 2)
    said = saved.go_back()
    assert said.startswith("Going on from learner step 100, 20 items in 2 shards, of ")
    assert "Set aside: 1 lines of metrics.jsonl, and checkpoints into" in said
    assert [path for path in saved.left() if not path.startswith("set_aside")] == [
        "learner/100/weights", "replay-0/000001/data/items", "replay-1/000001/data/items",
    ]  # fmt: skip
    assert [path.split("/", 2)[2] for path in saved.left() if path.startswith("set_aside")] == [
        "learner/200/weights", "replay-1/000002/data/items",
    ]  # fmt: skip
    assert saved.learner_steps() == (100, [100], [200])
    assert saved.go_back().startswith("Going on from learner step 100")
    assert "Set aside" not in saved.go_back()


def test_steps_that_the_learner_did_before_the_shards_had_saved_are_not_counted(saved: Saved) -> None:
    saved.learner(100)
    saved.look(130)
    for index in range(2):
        saved.shard(index, 1)
    saved.look(150)
    saved.checkpoints.tie(all_new=True)
    saved.look(170)
    assert "Set aside: 3 lines of metrics.jsonl." in saved.go_back()
    assert saved.learner_steps() == (100, [100], [130, 150, 170])


def test_steps_of_before_the_learner_fell_back_stay(saved: Saved) -> None:
    saved.look(180)  # then the learner was killed, and went on from an earlier checkpoint of its own
    saved.look(90)
    with saved.run.metrics.open("a") as file:
        file.write("half a li\n")
    saved.all(1)
    saved.checkpoints.tie(all_new=True)
    saved.look(170)
    with saved.run.metrics.open("a") as file:
        file.write("half a line more\n")
    assert "Set aside: 2 lines of metrics.jsonl." in saved.go_back()
    assert "180" in saved.run.metrics.read_text()
    assert (saved.run.path / resume.SET_ASIDE).read_text().splitlines()[1] == "half a line more"


@pytest.mark.parametrize("part", ["learner/200/weights", "replay-1/000002/data/items"])
@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
def test_a_checkpoint_with_a_damaged_part_is_skipped_whole(saved: Saved, part: str, how: str) -> None:
    for number in (1, 2):
        saved.all(number)
        saved.checkpoints.tie(all_new=True)
    path = saved.run.checkpoints / part
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    else:
        data[0] ^= 1
        path.write_bytes(data if how == "flipped" else data[:-1])
    said = saved.go_back()
    assert "Skipped the checkpoint of learner step 200" in said
    assert path.name in said.split("\n")[0]
    assert "Going on from learner step 100, 20 items" in said


def test_no_whole_checkpoint_is_said_and_nothing_is_moved(saved: Saved) -> None:
    saved.all(1)
    before = saved.left()
    assert saved.go_back().startswith("No checkpoint of the whole run can be used")
    assert saved.left() == before


def test_migration_begins_with_empty_tables_and_says_so(saved: Saved) -> None:
    saved.all(1)
    saved.checkpoints.tie(all_new=True)
    overrides = ["agent_config.replay.max_size=60000"]
    with pytest.raises(ValueError, match=r"was 50000 and would be 60000.* --resume_migrate to go on with empty tables"):
        resume.resumed_experiments(saved.run, overrides)
    _, after = resume.resumed_experiments(saved.run, overrides, migrate=True)
    assert "MIGRATED: agent_config.replay.max_size was 50000 and is 60000" in saved.go_back(after)
    assert [path for path in saved.left() if not path.startswith("set_aside")] == ["learner/100/weights"]
    with pytest.raises(ValueError, match="agent was 'apex_dqn' and would be 'impala'"):
        resume.resumed_experiments(saved.run, ["agent=impala"], migrate=True)
