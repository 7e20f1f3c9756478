"""Which process gets which devices. What is refused on every machine is in docs/errors.md."""

import pytest

from configs.overrides import apply_overrides
from configs.presets import preset
from launch.placement import check_placement, devices_of
from launch.processes import role_environment

PLACED = apply_overrides(
    preset("sebulba_cartpole"),
    ["topology.actors=1", "topology.accelerated_actors=2", "devices.actor=0,3", "devices.learner=1,2"],
)


def test_each_process_gets_its_own() -> None:
    given = {
        (role, index): devices_of(PLACED, role, index)
        for role, index in (("accelerated_actor", 0), ("accelerated_actor", 1), ("learner", 0), ("actor", 0))
    }
    assert list(given.values()) == [(0,), (3,), (1, 2), ()]
    assert devices_of(preset("sebulba_cartpole"), "accelerated_actor", 0) == ()


def test_learner_processes_share_the_learners_devices_out() -> None:
    several = apply_overrides(preset("sebulba_cartpole"), ["learner.processes=2", "devices.learner=1,2,3,5"])
    assert [devices_of(several, "learner", index) for index in range(2)] == [(1, 2), (3, 5)]
    check_placement(several)
    assert devices_of(apply_overrides(several, ["devices.learner=()"]), "learner", 1) == ()


def test_gpus_are_named_and_cpu_devices_are_forced() -> None:
    named = role_environment("learner", (1, 2), environ={})
    assert (named["CUDA_VISIBLE_DEVICES"], named["JAX_PLATFORMS"]) == ("1,2", "cuda,cpu")
    forced = role_environment("learner", (1, 2), forced=True, environ={})
    assert (forced["CUDA_VISIBLE_DEVICES"], forced["JAX_PLATFORMS"]) == ("", "cpu")
    assert "--xla_force_host_platform_device_count=2" in forced["XLA_FLAGS"].split()
    assert "device_count" not in named["XLA_FLAGS"]


def test_a_gpu_that_is_not_there_is_refused_where_gpus_are_known() -> None:
    check_placement(PLACED, present=range(4))
    check_placement(PLACED)  # no GPU: as many CPU devices as are asked for
    with pytest.raises(
        ValueError, match=r"devices.actor=0,3 holds 3, which isn't there: this machine has 0, 1, 2. Set"
    ):
        check_placement(PLACED, present=range(3))


def test_a_batch_that_does_not_divide_is_refused_only_where_somebody_uses_it() -> None:
    check_placement(apply_overrides(preset("ppo_cartpole"), ["accelerated.batch_size=5"]))
    with pytest.raises(ValueError, match=r"Set accelerated.batch_size=4 or 8"):
        check_placement(apply_overrides(preset("sebulba_cartpole"), ["accelerated.batch_size=5"]))
