"""Environments at their own pace: what they append is what comes out, each stream whole."""

from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies

from replay.asynchronous_writer import AsynchronousWriter
from replay.layout import make_layout
from replay.steps import Steps
from replay.writer import ReplayWriter
from tests.replay.streams import EXTRAS, STATE, Stream, assert_steps_equal, environment_spec, map_rows, random_stream
from tests.replay.test_layout import SPECS
from tests.replay.test_writer import Shards, match, read_sequences


def feed_by_chance(writer: AsynchronousWriter, stream: Stream, rows: int, slow: int, seed: int) -> None:
    """Appends `rows` rows of every environment in batches of any of them; environment 0 comes `slow` times less."""
    rng = np.random.default_rng(seed)
    count = len(stream.rows[0].reward)
    at = np.zeros(count, int)
    while len(left := np.flatnonzero(at < rows)):
        weight = np.where((left == 0) & (len(left) > 1), 1 / slow, 1.0)
        size = rng.integers(1, len(left) + 1)
        ids = rng.choice(left, size, replace=False, p=weight / weight.sum())
        row = gather(stream.rows, at[ids], ids)
        state = jax.tree.map(
            lambda *leaves: np.stack(leaves),
            *[jax.tree.map(lambda leaf, i=i: leaf[i], stream.states[at[i]]) for i in ids],
        )
        writer.append(row, state, ids)
        at[ids] += 1


def gather(rows: list[Steps], at: Any, ids: Any) -> Steps:
    """Row at[k] of environment ids[k], [M, ...]."""
    singles = [map_rows(lambda leaf, i=i: leaf[i], rows[t]) for t, i in zip(at, ids, strict=True)]
    return map_rows(lambda *leaves: np.stack(leaves), *singles)


@hypothesis.given(
    seed=strategies.integers(0, 1000),
    name=strategies.sampled_from(sorted(SPECS)),
    observation=strategies.sampled_from(["flat", "pixels", "dict"]),
    environments=strategies.integers(1, 5),
    count=strategies.integers(1, 3),
    end=strategies.sampled_from([0.0, 0.2, 0.7]),
    per_shard=strategies.sampled_from([1, 5, 256]),
    in_flight=strategies.sampled_from([1, 3, 64]),
    slow=strategies.sampled_from([1, 50]),
)
@hypothesis.settings(max_examples=16)
def test_items_hold_each_environments_own_rows_in_order(
    seed: int, name: str, observation: str, environments: int, count: int, end: float, per_shard: int, in_flight: int,
    slow: int,
):  # fmt: skip
    spec, environment = SPECS[name], environment_spec(observation)
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running = Shards(layout, count)
    writer = AsynchronousWriter(
        running.addresses, layout, spec, environments,
        start=seed, items_in_flight=in_flight, items_per_shard=per_shard,
    )  # fmt: skip
    rows, length = 50, spec.sequence_length
    stream = random_stream(seed, environment, rows, environments, end=end)
    feed_by_chance(writer, stream, rows, slow, seed)
    for shard in writer._shards:
        assert shard.flush(10)
    expected = {
        (b, start)
        for start in range(0, rows - length + 1, spec.period)
        for b in range(environments)
        if any(stream.rows[t].valid[b] for t in range(start + spec.burn_in, start + spec.burn_in + spec.trace))
    }
    found = set()
    for steps, state in read_sequences(layout, running.addresses):
        b, start = match(stream, steps, environments)
        found.add((b, start))
        assert_steps_equal(steps, stream.sequence(b, start, length))
        jax.tree.map(lambda got, want, b=b: np.testing.assert_array_equal(got[0], want[b]), state, stream.states[start])
    assert found == expected
    counts = writer.counts
    assert (counts.items_created, counts.items_confirmed, counts.rows) == (
        len(expected),
        len(found),
        rows * environments,
    )
    assert (counts.items_lost, counts.items_unconfirmed) == (0, 0)
    writer.close(5)
    running.stop()


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_tail_is_what_the_lockstep_writer_makes_of_it(name: str):
    spec, environment = SPECS[name], environment_spec("pixels")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    stream = random_stream(3, environment, 29, 3)
    written = []
    for asynchronous in (False, True):
        running = Shards(layout, 1)
        if asynchronous:
            scattered = AsynchronousWriter(running.addresses, layout, spec, 3)
            feed_by_chance(scattered, stream, 29, 3, 0)
            scattered.close(10)
        else:
            lockstep = ReplayWriter(running.addresses, layout, spec, 3)
            for row, state in zip(stream.rows, stream.states, strict=True):
                lockstep.append(row, state)
            lockstep.close(10)
        sequences = read_sequences(layout, running.addresses)
        written.append({_key(steps): (steps, state) for steps, state in sequences})
        running.stop()
    # In lockstep all environments are padded as far as one of them needs, so some rows are trained on once more.
    assert written[1].keys() <= written[0].keys()
    trained = slice(spec.burn_in, spec.burn_in + spec.trace)
    rows = [
        {float(r) for steps, _ in each.values() for r in steps.reward[trained][steps.valid[trained]]}
        for each in written
    ]
    assert rows[0] == rows[1]
    for key, (steps, state) in written[1].items():
        assert_steps_equal(steps, written[0][key][0])
        jax.tree.map(np.testing.assert_array_equal, state, written[0][key][1])


def _key(steps: Steps) -> bytes:
    return bytes(np.asarray(steps.reward).tobytes() + np.asarray(steps.version).tobytes())


def test_initial_priorities_are_of_the_environments_whose_items_end():
    spec, environment = SPECS[sorted(SPECS)[0]], environment_spec("flat")
    spec = type(spec)(trace=3, n_step=1, period=2, sampler="prioritized", max_size=1000, min_size=1)
    layout = make_layout(spec, environment, EXTRAS, STATE)
    running = Shards(layout, 1)
    asked: list[Any] = []

    def priorities(steps: Steps) -> Any:
        asked.append(np.array(steps.reward))
        return np.full(steps.reward.shape[1], 0.5)

    writer = AsynchronousWriter(running.addresses, layout, spec, 4, initial_priorities=priorities)
    stream = random_stream(5, environment, 21, 4, end=0.0)
    feed_by_chance(writer, stream, 21, 4, 1)
    for rewards in np.concatenate(asked, axis=1).T:
        begin = [(t, b) for t in range(21) for b in range(4) if stream.rows[t].reward[b] == rewards[0]]
        assert len(begin) == 1
        (start, b), *_ = begin
        np.testing.assert_array_equal(rewards, [stream.rows[start + t].reward[b] for t in range(4)])
    assert sum(rewards.shape[1] for rewards in asked) == writer.counts.items_created
    writer.close(5)
    running.stop()
