import dataclasses

import pytest

from configs.experiment import Experiment, ShardConfig
from configs.presets import apex_cartpole, impala_cartpole
from launch.assembly import assemble
from launch.preflight import check_disk, disk_free
from replay.tables import memory_of

MIB = 2**20


def check(free: int, experiment: Experiment) -> None:
    parts = assemble(experiment)
    check_disk(free, experiment, parts, memory_of(parts.agent.replay, parts.layout, experiment.topology.shards))


def test_the_disk_must_hold_the_shards_checkpoints():
    experiment = apex_cartpole()  # tables of 61.5 MiB when full; two checkpoints of them and the one being written
    check((512 + 190) * MIB, experiment)
    with pytest.raises(ValueError, match=r"run\.directory='runs' has 600\.0 MiB left .* need 69\d\.\d MiB"):
        check(600 * MIB, experiment)


def test_without_checkpoints_of_shards_it_needs_less():
    without = dataclasses.replace(apex_cartpole(), shard=ShardConfig(checkpoint_period=0))
    for experiment in (without, impala_cartpole()):
        check(513 * MIB, experiment)
        with pytest.raises(ValueError, match=r"shard\.checkpoint_period=0"):
            check(511 * MIB, experiment)


def test_the_disk_of_a_folder_that_is_not_there_is_that_of_the_one_above_it(tmp_path):
    assert disk_free(tmp_path / "a" / "b") == disk_free(tmp_path) > 0
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"run\.directory='.*file/run' can't be made or written"):
        disk_free(tmp_path / "file" / "run")
