import dataclasses

import pytest

from configs.experiment import ShardConfig
from configs.presets import apex_cartpole, impala_cartpole
from launch.preflight import check_disk

MIB = 2**20


def test_the_disk_must_hold_the_shards_checkpoints():
    experiment = apex_cartpole()  # tables of 61.5 MiB when full; two checkpoints of them and the one being written
    check_disk((512 + 190) * MIB, experiment)
    with pytest.raises(ValueError, match=r"run\.directory='runs' has 600\.0 MiB left .* need 69\d\.\d MiB"):
        check_disk(600 * MIB, experiment)


def test_without_checkpoints_of_shards_it_needs_less():
    without = dataclasses.replace(apex_cartpole(), shard=ShardConfig(checkpoint_period=0))
    for experiment in (without, impala_cartpole()):
        check_disk(513 * MIB, experiment)
        with pytest.raises(ValueError, match=r"shard\.checkpoint_period=0"):
            check_disk(511 * MIB, experiment)


def test_no_checkpoint_kept_is_refused():
    with pytest.raises(ValueError, match=r"shard\.checkpoints_kept=0 must be at least 1"):
        check_disk(10**12, dataclasses.replace(apex_cartpole(), shard=ShardConfig(checkpoints_kept=0)))
