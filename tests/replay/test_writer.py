"""What actors append is what comes out of real Reverb servers, whatever happens to these."""

import logging as python_logging
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
import reverb
from hypothesis import strategies

from configs.experiment import EnvironmentConfig
from launch.environments.factory import make_environments
from replay.layout import Layout, make_layout
from replay.spec import ReplaySpec
from replay.steps import Steps
from replay.writer import ReplayWriter
from tests.ports import free_port
from tests.replay import servers
from tests.replay.streams import EXTRAS, STATE, Stream, assert_steps_equal, environment_spec, map_rows, random_stream
from tests.replay.test_layout import SPECS


class Shards:
    """Servers in this process."""

    def __init__(self, layout: Layout, count: int, max_size: int = 1000) -> None:
        self._servers = [
            reverb.Server([servers.make_table(layout.signature, max_size, queue=True)], port=free_port())
            for _ in range(count)
        ]
        self.addresses = [f"127.0.0.1:{server.port}" for server in self._servers]

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


@pytest.fixture
def shards() -> Iterator[Callable[..., Shards]]:
    started: list[Shards] = []

    def start(*args: Any, **kwargs: Any) -> Shards:
        started.append(Shards(*args, **kwargs))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def started() -> Iterator[list[BaseProcess]]:
    """Server processes; those in it are killed afterwards."""
    processes: list[BaseProcess] = []
    yield processes
    for process in processes:
        servers.kill(process)


def feed(writer: ReplayWriter, stream: Stream, start: int = 0, end: int | None = None) -> None:
    for row, state in zip(stream.rows[start:end], stream.states[start:end], strict=True):
        writer.append(row, state)


def read_sequences(layout: Layout, addresses: list[str]) -> list[tuple[Any, Any]]:
    """(Steps [L, ...], state) of every item, shard by shard."""
    sequences = []
    for address in addresses:
        count = servers.size(address)
        for _, columns in servers.read(address, count) if count else []:
            steps, state = layout.assemble(layout.unpack(columns))
            sequences.append((map_rows(lambda leaf: np.asarray(leaf)[:, 0], steps), state))
    return sequences


def match(stream: Stream, steps: Any, environments: int) -> tuple[int, int]:
    """Where a sequence begins: (environment, row). Rewards are random, so they tell."""
    start = int(steps.version[0])
    rewards = stream.rows[start].reward
    environment = int(np.flatnonzero(rewards == steps.reward[0])[0])
    assert 0 <= environment < environments
    return environment, start


@hypothesis.given(
    seed=strategies.integers(0, 1000),
    name=strategies.sampled_from(sorted(SPECS)),
    observation=strategies.sampled_from(["flat", "pixels", "dict"]),
    environments=strategies.integers(1, 4),
    count=strategies.integers(1, 3),
    end=strategies.sampled_from([0.0, 0.2, 0.7]),
    per_shard=strategies.sampled_from([1, 5, 256]),
    in_flight=strategies.sampled_from([1, 3, 64]),
)
@hypothesis.settings(max_examples=12)
def test_items_hold_the_rows_that_were_fed(
    seed: int, name: str, observation: str, environments: int, count: int, end: float, per_shard: int, in_flight: int
):
    spec, environment = SPECS[name], environment_spec(observation)
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running = Shards(layout, count)
    writer = ReplayWriter(
        running.addresses, layout, spec, environments,
        start=seed, items_in_flight=in_flight, items_per_shard=per_shard,
    )  # fmt: skip
    rows, length = 50, spec.sequence_length
    stream = random_stream(seed, environment, rows, environments, end=end)
    feed(writer, stream)
    for shard in writer._shards:
        assert shard.flush(10)
    expected = set()
    skipped = 0
    for start in range(0, rows - length + 1, spec.period):
        trained = [stream.rows[t].valid for t in range(start + spec.burn_in, start + spec.burn_in + spec.trace)]
        for b, any_valid in enumerate(np.any(trained, axis=0)):
            expected |= {(b, start)} if any_valid else set()
            skipped += not any_valid
    found = set()
    for steps, state in read_sequences(layout, running.addresses):
        b, start = match(stream, steps, environments)
        found.add((b, start))
        assert_steps_equal(steps, stream.sequence(b, start, length))
        jax.tree.map(lambda got, want, b=b: np.testing.assert_array_equal(got[0], want[b]), state, stream.states[start])
    assert found == expected
    counts = writer.counts
    assert (counts.items_created, counts.items_confirmed, counts.items_skipped) == (len(expected), len(found), skipped)
    assert (counts.rows, counts.items_lost, counts.items_unconfirmed) == (rows * environments, 0, 0)
    writer.close(5)
    running.stop()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("rows", [2, 21, 29])
def test_the_tail_is_padded_and_cut_like_a_time_limit(shards: Any, name: str, rows: int):
    spec, environment = SPECS[name], environment_spec("pixels")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running = shards(layout, 1)
    writer = ReplayWriter(running.addresses, layout, spec, 2)
    stream = random_stream(rows, environment, rows, 2, end=0.0)
    ended = stream.rows[-1].terminated
    ended[1] = True  # environment 1 is at its end, environment 0 is cut
    feed(writer, stream)
    writer.close(10)
    assert writer.counts.items_unconfirmed == writer.counts.items_lost == 0
    trained: dict[tuple[int, int], Any] = {}  # the last item's word on each row that is trained on
    for steps, _ in read_sequences(layout, running.addresses):
        b, start = match(stream, steps, 2)
        for t in range(spec.burn_in, spec.burn_in + spec.trace):
            if steps.valid[t]:
                trained[b, start + t] = (steps.truncated[t], steps.terminated[t])
                want = stream.sequence(b, start + t, 1)
                np.testing.assert_array_equal(steps.observation[t], want.observation[0])
                np.testing.assert_array_equal(steps.reward[t], want.reward[0])
    wanted = {(0, t) for t in range(spec.burn_in, rows - 1)} | {(1, t) for t in range(spec.burn_in, rows)}
    assert trained.keys() == wanted
    if (1, rows - 1) in trained:
        assert trained[1, rows - 1] == (False, True)
    # Where the row before the cut is trained on for the first time by a padded item, it says so; an item written before
    # had the true next observation to bootstrap from.
    padded = writer.counts.rows_padded > 0
    if padded and spec.n_step > 1 and rows > 2 and (0, rows - 2) in trained:
        assert trained[0, rows - 2] == (True, False)


def test_pongs_stacks_come_back_from_single_frames(shards: Any):
    """Real frames, real resets (episodes are cut after 30 steps); one buffer is fed again and again: it is copied."""
    options = {"max_episode_steps": 30}
    environments = make_environments(EnvironmentConfig(name="Pong-v5", options=options), 2, seed=0, threads=1)
    spec = ReplaySpec(burn_in=4, trace=16, n_step=1, period=10)
    layout = make_layout(spec, environments.spec, {})
    running = shards(layout, 2)
    writer = ReplayWriter(running.addresses, layout, spec, 2, items_per_shard=3)
    shown, stream = environments.reset(), Stream([], [])
    rng, buffer = np.random.default_rng(0), np.empty((2, 4, 84, 84), np.uint8)
    for index in range(121):
        action = rng.integers(0, 6, 2).astype(np.int32)
        following = environments.step(action)
        row = Steps(
            observation=shown.observation.copy(),
            action=action,
            reward=rng.normal(size=2).astype(np.float32),  # tells rows apart
            first=shown.first.copy(),
            terminated=following.terminated.copy(),
            truncated=following.truncated.copy(),
            valid=~(shown.terminated | shown.truncated),
            version=np.full(2, index, np.int32),
            extras={},
        )
        stream.rows.append(row)
        buffer[:] = row.observation
        writer.append(row._replace(observation=buffer))
        buffer[:] = 7
        shown = following
    environments.close()
    firsts = np.stack([row.first for row in stream.rows])
    assert (firsts.sum(axis=0) >= 4).all()
    assert all(shard.flush(10) for shard in writer._shards)
    found = read_sequences(layout, running.addresses)
    assert len(found) == 2 * ((121 - 21) // 10 + 1)
    across = 0
    for steps, _ in found:
        b, start = match(stream, steps, 2)
        assert_steps_equal(steps, stream.sequence(b, start, 21))
        across += bool(steps.first[1:].any())
    assert across > 0
    writer.close(5)


def test_overlapping_sequences_share_their_segments(shards: Any):
    """81 rows every 40: what is stored is 44/40 frames a step, not 2 x 81/80 x 4; seen in the chunks' keys."""
    spec, environment = ReplaySpec(burn_in=8, trace=8, n_step=1, period=4), environment_spec("pixels")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running = shards(layout, 1)
    writer = ReplayWriter(running.addresses, layout, spec, 1)
    stream = random_stream(0, environment, 57, 1, end=0.0)
    feed(writer, stream)
    assert writer._shards[0].flush(10)
    server_side = reverb.Client(running.addresses[0]).server_info(timeout=5)["trajectories"]
    items = int(server_side.current_size)
    assert items == (57 - 17) // 4 + 1
    segments = (57 - 1) // 4
    sent = writer._shards[0].position
    assert sent == segments == items + layout.units - 1  # control: without sharing it were items * units
    assert sent < items * layout.units / 3
    writer.close(5)


def test_a_stopped_wait_ends_and_is_counted(shards: Any):
    """A full queue takes no more: what is in flight stays bounded, and `stop` ends the wait."""
    spec, environment = SPECS["one segment"], environment_spec("flat")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running, stop = shards(layout, 1, max_size=4), threading.Event()
    writer = ReplayWriter(running.addresses, layout, spec, 2, items_in_flight=6, stop=stop)
    thread = threading.Thread(target=feed, args=(writer, random_stream(0, environment, 200, 2, end=0.0)))
    thread.start()
    deadline = time.monotonic() + 30
    while servers.size(running.addresses[0]) < 4 or writer.counts.items_created < 10:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    thread.join(1.0)
    assert thread.is_alive()
    assert writer.counts.items_created == 4 + 6  # in the queue, and in flight
    asked, ask = [], writer._shards[0].has_room

    def has_room(seconds):
        asked.append(seconds)
        return ask(seconds)

    writer._shards[0].has_room = has_room  # type: ignore[assignment, method-assign]
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(asked) <= 2  # and not once more for each of the items that are left
    writer.close(0.5)
    counts = writer.counts
    assert (counts.items_confirmed, counts.items_unconfirmed) == (4, 6)
    assert counts.items_created + counts.items_lost == 2 * 199 // 8 - 1 + 2
    assert counts.seconds_waited > 0


def test_what_is_in_flight_is_bounded_in_bytes_too():
    spec = ReplaySpec(trace=80, n_step=1, period=40)
    from replay.shard_writer import in_flight_bound
    from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec

    pixels = ArraySpec(shape=(4, 84, 84), dtype="uint8", stacked=True)
    layout = make_layout(spec, EnvironmentSpec(observation=pixels, action=DiscreteAction(count=6)), {})
    assert layout.unit_nbytes == 44 * 84 * 84 + 41 * 16
    assert in_flight_bound(layout, 1000) == 64 * 2**20 // layout.unit_nbytes == 215
    assert in_flight_bound(layout, 64) == 64


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_bad_priority_is_named_and_breaks_nothing(shards: Any, value: float):
    spec = ReplaySpec(trace=8, n_step=1, period=8, sampler="prioritized")
    environment = environment_spec("flat")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running, seen = shards(layout, 1), []

    def priorities(steps: Any) -> Any:
        seen.append(map_rows(np.copy, steps))
        return np.array([1.0, value if len(seen) == 2 else 0.0, 5.0])

    writer = ReplayWriter(running.addresses, layout, spec, 3, initial_priorities=priorities)
    stream = random_stream(0, environment, 25, 3, end=0.0)
    feed(writer, stream, 0, 16)
    with pytest.raises(ValueError, match=f"gave {value} for environment 1, rows 8..16 "):
        feed(writer, stream, 16, 17)
    feed(writer, stream, 17)
    assert writer._shards[0].flush(10)
    assert len(seen) == 3  # once for all environments
    for index, steps in enumerate(seen):
        for b in range(3):
            assert_steps_equal(map_rows(lambda leaf, b=b: leaf[:, b], steps), stream.sequence(b, 8 * index, 9))
    items = servers.read(running.addresses[0], 6)
    assert [info.priority for info, _ in items] == [1.0, 0.0, 5.0] * 2
    assert (writer.counts.items_confirmed, writer.counts.items_lost) == (6, 3)
    writer.close(5)


def test_priorities_are_one_without_prioritized_sampling(shards: Any):
    spec, environment = SPECS["rows"], environment_spec("flat")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running = shards(layout, 1)
    writer = ReplayWriter(running.addresses, layout, spec, 1, initial_priorities=lambda steps: 1 / 0)
    feed(writer, random_stream(0, environment, 10, 1, end=0.0))
    assert writer._shards[0].flush(10)
    assert {info.priority for info, _ in servers.read(running.addresses[0], 7)} == {1.0}
    writer.close(5)


def test_another_signature_is_refused_where_it_is_written(shards: Any):
    spec = SPECS["one segment"]
    layout = make_layout(spec, environment_spec("flat"), EXTRAS, STATE)
    running = shards(make_layout(spec, environment_spec("flat"), {}, STATE), 1)
    writer = ReplayWriter(running.addresses, layout, spec, 1)
    with pytest.raises(ValueError, match="rows"):
        feed(writer, random_stream(0, environment_spec("flat"), 9, 1, end=0.0))
    assert writer.counts.items_lost == 1
    writer.close(1)
    bad = random_stream(0, environment_spec("flat"), 1, 1)
    writer = ReplayWriter(running.addresses, layout, spec, 1)
    with pytest.raises(ValueError, match="want float32"):
        writer.append(bad.rows[0]._replace(reward=bad.rows[0].reward.astype("float64")), bad.states[0])


@pytest.mark.slow
def test_a_killed_shard_is_passed_over_and_gets_data_again(started: list[BaseProcess]):
    spec, environment = SPECS["segments"], environment_spec("flat")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    ports = [free_port(), free_port()]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    first, second = (servers.start_process(port, layout, max_size=100_000) for port in ports)
    started += [first, second]
    servers.wait_for(*ports)
    writer = ReplayWriter(addresses, layout, spec, 2, items_in_flight=8, items_per_shard=4)
    stream = random_stream(0, environment, 400, 2, end=0.0)
    feed(writer, stream)
    assert all(shard.flush(10) for shard in writer._shards)
    before = servers.size(addresses[1])
    assert before > 50
    assert servers.size(addresses[0]) > 50
    servers.kill(first)
    feed(writer, stream)  # goes on at the other one
    assert servers.size(addresses[1]) > before + 150
    counts = writer.counts
    assert counts.shards_stalled == 1
    assert counts.items_unconfirmed <= 2 * 8
    assert counts.items_lost == 0
    queued = writer._shards[0].count_unconfirmed()
    assert 0 < queued <= 8
    started.append(servers.start_process(ports[0], layout, max_size=100_000))
    servers.wait_for(ports[0])
    deadline = time.monotonic() + 60
    while servers.size(addresses[0]) < queued + 20:  # what was queued, and new items
        assert time.monotonic() < deadline, writer.counts
        feed(writer, stream, 0, 8)
        time.sleep(0.05)
    writer.close(10)
    assert writer.counts.items_unconfirmed == 0
    assert writer.counts.shards_stalled == 0


@pytest.mark.slow
def test_shards_that_were_never_there_are_said_and_waited_for(
    started: list[BaseProcess], caplog: pytest.LogCaptureFixture
):
    spec, environment = SPECS["one segment"], environment_spec("flat")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    port, stop = free_port(), threading.Event()
    address = f"127.0.0.1:{port}"
    writer = ReplayWriter([address], layout, spec, 1, stop=stop)
    thread = threading.Thread(target=feed, args=(writer, random_stream(0, environment, 9, 1, end=0.0)))
    with caplog.at_level(python_logging.WARNING, logger="absl"):
        thread.start()
        thread.join(11)
    assert thread.is_alive()
    assert f"{address} doesn't answer" in caplog.text
    started.append(servers.start_process(port, layout))
    servers.wait_for(port)
    thread.join(30)
    assert not thread.is_alive()
    writer.close(5)
    assert writer.counts.items_confirmed == 1

    writer = ReplayWriter([address], layout, spec, 1, items_in_flight=2)
    stream = random_stream(0, environment, 17, 1, end=0.0)
    feed(writer, stream, 0, 9)
    assert writer._shards[0].flush(10)
    servers.kill(started[0])
    feed(writer, stream, 9)
    writer.close(1.0)  # ends though nobody answers
    counts = writer.counts
    assert (counts.items_created, counts.items_confirmed, counts.items_unconfirmed) == (2, 1, 1)
