"""The same global batch gives the same update on one device, on several, and in several processes."""

import functools
import os
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from agents.data_parallel import AXIS
from launch.processes import COORDINATOR
from launch.update_program import Collective, collectives_in
from replay.steps import Array
from tests.launch.placements import BATCH, CONFIGS, given, learn, learn_at_once, parts_of
from tests.ports import free_port
from tests.source_tree import ROOT

# Sums over the batch are taken in another order. Adam divides by the gradient's own size, which makes much of the
# difference where a gradient is nearly 0: so the loss and priorities agree to more digits than the weights.
RTOL, ATOL = 2e-4, 2e-5
# That cross with each gradient: counts of valid rows, parts of the loss, the largest importance weight; ADR 9 has them.
STEPS = {"ppo": 4}  # gradient steps in an update, where they are more than one
SCALARS = {"apex_dqn": 4, "impala": 8, "ppo": 14, "r2d2": 4}


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.asarray(jax.devices()[:devices]), (AXIS,))


@functools.cache
def on_devices(name: str, devices: int) -> tuple[dict[str, Array], str]:
    return learn(name, given(name), mesh_of(devices))


def assert_same(got: dict[str, Array], want: dict[str, Array]) -> None:
    assert got.keys() == want.keys()
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, err_msg=key, rtol=RTOL, atol=ATOL)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_devices_do_not_change_an_update(name):
    one, _ = on_devices(name, 1)
    assert_same(on_devices(name, 2)[0], one)
    assert_same(on_devices(name, 4)[0], one)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_difference_of_a_thousandth_would_be_seen(name):
    one, _ = on_devices(name, 1)
    other = {key: value * 1.001 if key.startswith("state.params") else value for key, value in one.items()}
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same(other, one)


@pytest.mark.slow
def test_updates_in_one_call_are_those_of_several_calls():
    want, _ = on_devices("apex_dqn", 2)
    got = learn_at_once("apex_dqn", given("apex_dqn"), mesh_of(2))
    assert_same(got, {key: value for key, value in want.items() if not key.startswith("total")})


@pytest.mark.slow
def test_processes_do_not_change_an_update_and_get_back_their_own_priorities(tmp_path):
    (tmp_path / "given").write_bytes(pickle.dumps({name: given(name) for name in CONFIGS}))
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        COORDINATOR: f"127.0.0.1:{free_port()}",
    }
    command = [sys.executable, "-m", "tests.launch.placements"]
    members = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    errors = [member.communicate(timeout=400)[1] for member in members]
    assert [member.returncode for member in members] == [0, 0], errors
    for name in CONFIGS:
        parts = [dict(np.load(tmp_path / f"{name}-{rank}.npz")) for rank in range(2)]
        for key in [key for key in parts[0] if key.startswith("priorities/")]:
            assert parts[0][key].shape == (BATCH // 2,)
            parts[0][key] = parts[1][key] = np.concatenate([part[key] for part in parts])
        one, _ = on_devices(name, 1)
        assert_same(parts[0], one)
        assert_same(parts[1], one)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_but_the_gradient_and_a_few_sums_cross_devices(name):
    found = collectives_in(on_devices(name, 4)[1])
    assert {each.kind for each in found} == {"all-reduce"}
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(parts_of(name).params_structure()))
    steps = STEPS.get(name, 1)
    moved = sum(each.nbytes * each.times for each in found)
    print(f"{name}: {moved:,} bytes cross in an update, {weights * steps:,} of them gradients")
    assert moved == (weights + 4 * SCALARS[name]) * steps


HLO = """HloModule jit_update

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add.1 = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %ar = f32[8,2]{1,0} all-reduce(%x), channel_id=1, to_apply=%sum
  ROOT %t = (s32[], f32[8]) tuple(%i, %ar)
}

%condition (p: (s32[], f32[8])) -> pred[] {
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]) while(%init), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %both = (f32[], u8[10]{0}) all-gather(%y, %z), channel_id=2
  ROOT %out = f32[8] get-tuple-element(%w), index=1
}
"""


def test_collectives_are_counted_with_the_rounds_of_their_loops():
    assert collectives_in(HLO) == [Collective("all-reduce", 64, 3), Collective("all-gather", 14, 1)]


def test_a_loop_of_unknown_length_is_not_guessed():
    with pytest.raises(ValueError, match="unknown length"):
        collectives_in(HLO.replace("known_trip_count", "other"))
