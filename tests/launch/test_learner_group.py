"""How learner processes keep step; what JAX makes of it, test_placements and test_learner_processes show."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from launch.learner import check_divides
from launch.learner_group import LearnerGroup
from launch.processes import COORDINATOR
from tests.source_tree import ROOT


@pytest.fixture
def groups(monkeypatch, free_port):
    """Three members of one group, in this process."""
    monkeypatch.setenv(COORDINATOR, f"127.0.0.1:{free_port}")
    members = [LearnerGroup(rank, 3, threading.Event()) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(LearnerGroup.meet, members)) == [True] * 3
        yield members
        list(pool.map(LearnerGroup.part, members))


def everybody(call, groups) -> list[bool]:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(call, groups))


def eventually(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nobody_goes_before_all_have_a_batch(groups):
    first, second, third = groups
    assert not second.may_go(0, timeout_s=0.1)
    assert not first.may_go(0, timeout_s=0.1)
    eventually(lambda: first.missing == "learner-2")
    assert everybody(lambda group: group.may_go(0, timeout_s=30), groups) == [True] * 3
    assert not third.may_go(1, timeout_s=0.1)  # each step anew


@pytest.mark.parametrize("rank", range(3))
def test_a_wish_to_stop_ends_all_before_the_same_update(groups, rank):
    assert everybody(lambda group: group.may_go(0, timeout_s=30), groups) == [True] * 3
    assert not any(group.ended for group in groups)
    groups[rank]._stop.set()
    done = [0] * 3

    def learn(group: LearnerGroup) -> None:
        while not group.ended:
            if group.may_go(done[group.rank] + 1, timeout_s=30):
                done[group.rank] += 1

    everybody(learn, groups)
    assert len(set(done)) == 1


def test_a_stranger_is_shown_the_door(monkeypatch, free_port):
    monkeypatch.setenv(COORDINATOR, f"127.0.0.1:{free_port}")
    members = [LearnerGroup(rank, 2, threading.Event()) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(members[0].meet)
        curl = [
            sys.executable,
            "-c",
            f"import socket as s; s.create_connection(('127.0.0.1', {free_port})).sendall(b'GET /')",
        ]
        eventually(lambda: subprocess.run(curl, capture_output=True, check=False).returncode == 0)
        assert members[1].meet()
        assert first.result(30)
        list(pool.map(LearnerGroup.part, members))


def test_who_is_missing_can_be_given_up(monkeypatch, free_port):
    monkeypatch.setenv(COORDINATOR, f"127.0.0.1:{free_port}")
    for rank in range(2):
        stop = threading.Event()
        stop.set()
        assert not LearnerGroup(rank, 2, stop).meet()


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:http"])
def test_a_coordinator_that_cannot_be_is_refused(monkeypatch, address):
    monkeypatch.setenv(COORDINATOR, address)
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        LearnerGroup(0, 2, threading.Event()).meet()


MEMBER = """
import sys, threading, time
from launch.learner_group import LearnerGroup
group = LearnerGroup(int(sys.argv[1]), 3, threading.Event())
group.meet()
print("here", flush=True)
if sys.argv[1] == sys.argv[2]:
    if sys.argv[3] == "raises":
        group.fail(ValueError("the loss is nan"))
    sys.exit(3)
time.sleep(1000)  # as within a collective
"""


@pytest.mark.parametrize(("culprit", "how"), [(0, "ends"), (1, "ends"), (2, "raises")])
def test_one_that_is_gone_takes_the_others_down_and_is_named(monkeypatch, free_port, culprit, how):
    monkeypatch.setenv(COORDINATOR, f"127.0.0.1:{free_port}")
    command = [sys.executable, "-c", MEMBER]
    members = [
        subprocess.Popen([*command, str(rank), str(culprit), how], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    said = [member.communicate(timeout=100)[1] for member in members]
    assert [member.returncode for member in members] == [3 if rank == culprit else 1 for rank in range(3)]
    wanted = (
        f"learner-{culprit} failed: ValueError: the loss is nan" if how == "raises" else f"learner-{culprit} is gone"
    )
    for rank in {0, 1, 2} - {culprit}:
        assert f"{wanted}, so learner-{rank} ends too" in said[rank]


@pytest.mark.parametrize(
    ("batch_size", "processes", "devices", "nearest"),
    [(10, 2, 2, "8 or 12"), (3, 4, 1, "batch_size=4"), (7, 7, 2, "14")],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest(batch_size, processes, devices, nearest):
    with pytest.raises(ValueError, match=f"learner.batch_size={batch_size} doesn't divide .*{nearest}"):
        check_divides(batch_size, processes, devices)
    check_divides(batch_size * processes * devices, processes, devices)
