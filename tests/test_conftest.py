"""The surroundings that the other tests rely on are really so."""

import os
import random
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from tests import leftovers
from tests.ports import free_port as find_free_port
from tests.ports import is_listening


def test_jax_has_several_cpu_devices_and_nothing_else():
    assert [device.platform for device in jax.devices()] == ["cpu"] * 4


def test_rank_promotion_raises():
    jnp.ones((2, 3)) + jnp.ones((2, 3))  # control
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)


@pytest.mark.parametrize("_again", [0, 1])
def test_global_seeds_are_the_same_in_every_test(_again: int):
    assert random.random() == random.Random(0).random()
    assert np.random.random() == np.random.RandomState(0).random_sample()  # noqa: NPY002


def test_a_local_port_is_free_and_not_given_twice(free_port: int):
    assert not is_listening(free_port)
    assert len({free_port, *(find_free_port() for _ in range(50))}) == 51


def test_a_loopback_address_is_in_no_proxy():
    assert "127.0.0.1" in os.environ["no_proxy"].split(",")


def test_a_process_left_behind_is_found_even_when_its_parent_has_died():
    orphan_script = "[sys.executable, '-c', 'import time; time.sleep(60)'], stdout=subprocess.DEVNULL"
    script = f"import subprocess, sys; print(subprocess.Popen({orphan_script}).pid)"
    before = {process.pid for process in leftovers.find_leftovers()}
    parent = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    orphan = psutil.Process(int(parent.stdout))
    try:
        assert [process.pid for process in leftovers.wait_for_no_leftovers(before, 0.0)] == [orphan.pid]
    finally:
        orphan.kill()
    assert leftovers.wait_for_no_leftovers(before, 10.0) == []
