"""What holds for every test: CPU only, four devices, fixed seeds, a deadline, no process left behind."""

import faulthandler
import os
import random
import sys
from collections.abc import Iterator

import hypothesis
import numpy as np
import psutil
import pytest

from tests import leftovers
from tests.ports import free_port as find_free_port

DEVICES = 4
SECONDS_TO_END = 5.0  # that child processes have after the last test of a module
LATE = 60.0  # seconds after its deadline at which a test that nothing can interrupt ends the whole run
DEADLINES = {"": 120, "slow": 600, "big": 1800}  # seconds, by marker; generous, as two cores may be shared

# Read when JAX, TensorFlow and gRPC are first imported, here and in child processes. Nothing imports them before this.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["GRPC_VERBOSITY"] = "ERROR"
os.environ["MPLBACKEND"] = "Agg"
# A proxy would be asked for loopback addresses too (gRPC reads the lower-case name).
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name, ""), "localhost", "127.0.0.1", "::1"]))
leftovers.tag_environment()

_TERMINAL = pytest.StashKey[int]()

hypothesis.settings.register_profile("antiphon", derandomize=True, deadline=None)
hypothesis.settings.load_profile("antiphon")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test without a deadline of its own the one of its marker."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            marker = next((name for name in ("big", "slow") if item.get_closest_marker(name)), "")
            item.add_marker(pytest.mark.timeout(DEADLINES[marker]))


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the terminal for what is said while a test's output is caught."""
    config.stash[_TERMINAL] = os.dup(sys.stderr.fileno())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Ends the run, with every thread's stack, where a test hangs in C++ with the interpreter's lock: pytest-timeout's
    signal waits for that lock.
    """
    marker = item.get_closest_marker("timeout")
    assert marker is not None
    faulthandler.dump_traceback_later(marker.args[0] + LATE, exit=True, file=item.config.stash[_TERMINAL])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - third-party code may draw from it


@pytest.fixture(scope="module", autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    before = {process.pid for process in leftovers.find_leftovers()}
    yield
    left = leftovers.wait_for_no_leftovers(before, SECONDS_TO_END)
    lines = [leftovers.describe(process) for process in left]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    if lines:
        pytest.fail("tests of this module left processes behind (now killed):\n" + "\n".join(lines), pytrace=False)


@pytest.fixture
def free_port() -> int:
    """A loopback port that nobody listens on."""
    return find_free_port()
