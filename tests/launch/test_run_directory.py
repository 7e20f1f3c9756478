"""The folder of a run."""

import dataclasses
import re
from pathlib import Path

import pytest

from configs import serialization
from configs.experiment import Experiment, RunConfig
from launch.run_directory import RunDirectory, make_run_directory, write_atomically
from replay.spec import ReplaySpec
from tests.launch.full_disk import file_size_limit


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    replay: ReplaySpec = ReplaySpec()


def make_experiment(parent: Path) -> Experiment:
    return Experiment(name="proof", agent="impala", agent_config=AgentConfig(), run=RunConfig(directory=str(parent)))


def test_runs_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path / "runs")
    made = [make_run_directory(experiment) for _ in range(3)]
    assert len({run.path for run in made}) == 3
    for run in made:
        assert re.fullmatch(r"proof-\d{8}-\d{6}(-\d+)?", run.path.name)
        assert serialization.from_json(run.config.read_text()) == experiment
        assert (run.logs.is_dir(), run.tensorboard.is_dir(), run.checkpoints.is_dir()) == (True, True, True)
    assert (tmp_path / "runs" / "latest").resolve() == made[-1].path.resolve()
    assert made[0].log("actor-3") == made[0].path / "logs" / "actor-3.log"


def test_a_real_folder_named_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").write_text("")
    make_run_directory(make_experiment(tmp_path))
    assert (tmp_path / "latest" / "mine").exists()


def test_a_folder_that_cannot_be_made_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"run\.directory='.*file/runs'.*Not a directory"):
        make_run_directory(make_experiment(tmp_path / "file" / "runs"))


def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, "old")
    with file_size_limit(10), pytest.raises(OSError, match="File too large"):
        write_atomically(path, "new" * 10)
    assert path.read_text() == "old"
    write_atomically(path, "new" * 10)
    assert path.read_text() == "new" * 10  # control
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_everything_lies_in_the_folder() -> None:
    run = RunDirectory(Path("runs/a"))
    for path in (run.config, run.metrics, run.tensorboard, run.curve, run.status, run.checkpoints, run.logs):
        assert path.parent == run.path
