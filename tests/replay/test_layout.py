"""Rows go into units and come back as they were, without a server in between."""

from typing import Any

import jax
import numpy as np
import pytest

from replay.fields import check_rows, make_reader
from replay.layout import STATE as STATE_COLUMN
from replay.layout import Layout, make_layout
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.steps import Steps
from replay.units import UnitBuffer
from tests.replay.streams import EXTRAS, STATE, Stream, assert_steps_equal, environment_spec, map_rows, random_stream

SPECS = {
    "one segment": ReplaySpec(trace=8, n_step=1, period=8),
    "segments": ReplaySpec(burn_in=4, trace=8, n_step=1, period=4),
    "segments, a longer overlap": ReplaySpec(burn_in=5, trace=10, n_step=3, period=8),
    "rows": ReplaySpec(trace=1, n_step=3, period=1),
    "rows, period 2": ReplaySpec(burn_in=1, trace=3, n_step=2, period=2),
}


def read_back(layout: Layout, stream: Stream, environments: int) -> list[tuple[int, dict[str, Any]]]:
    """The items that a writer would make: where each starts, and its raw columns [B, ...]."""
    buffer, read = UnitBuffer(layout, environments), make_reader(layout)
    history: list[dict[str, Any]] = []
    items: list[tuple[int, dict[str, Any]]] = []
    for row, state in zip(stream.rows, stream.states, strict=True):
        for unit in range(buffer.units, buffer.units + buffer.append(read(row), jax.tree.leaves(state))):
            columns = buffer.unit(unit)
            history.append({name: None if column is None else column.copy() for name, column in columns.items()})
            if not buffer.item_ends(unit):
                continue
            item = history[-layout.units :]
            item_columns: dict[str, Any] = {n: np.stack([u[n] for u in item], 1) for n in columns if n != STATE_COLUMN}
            if layout.state:
                item_columns[STATE_COLUMN] = item[layout.context][STATE_COLUMN][:, None]
            items.append((buffer.rows - layout.spec.sequence_length, item_columns))
    return items


@pytest.mark.parametrize("observation", ["flat", "pixels", "dict"])
@pytest.mark.parametrize("name", SPECS)
def test_rows_come_back_as_they_were(name: str, observation: str):
    spec, environment = SPECS[name], environment_spec(observation, continuous=observation == "flat")
    layout = make_layout(spec, environment, EXTRAS, STATE)
    assert layout.segmented == (name.startswith(("one", "segments")) or (observation == "flat" and spec.period > 1))
    stream = random_stream(3, environment, 60, 3)
    items = read_back(layout, stream, 3)
    length, assemble = spec.sequence_length, jax.jit(layout.assemble)
    assert [start for start, _ in items] == list(range(0, 60 - length + 1, spec.period))
    for start, columns in items:
        for column, (shape, dtype) in layout.signature.items():
            assert columns[column].shape[1:] == shape
            assert columns[column].dtype == dtype
        arrays = layout.unpack(columns)
        assert all(array.flags.c_contiguous for array in arrays.values())
        steps, state = assemble(arrays)
        for b in range(3):
            assert_steps_equal(map_rows(lambda leaf, b=b: leaf[:, b], steps), stream.sequence(b, start, length))
        jax.tree.map(np.testing.assert_array_equal, state, stream.states[start])


@pytest.mark.parametrize("name", SPECS)
def test_stacks_are_wrong_without_the_first_flags(name: str):
    """The control: only with `first` do the stacks come back, and only from frames in their order."""
    environment = environment_spec("pixels")
    layout = make_layout(SPECS[name], environment, EXTRAS, STATE)
    stream = random_stream(3, environment, 60, 3)
    start, columns = read_back(layout, stream, 3)[1]
    want = np.stack([stream.sequence(b, start, layout.spec.sequence_length).observation for b in range(3)], 1)
    arrays = layout.unpack(columns)
    unflagged = {key: np.zeros_like(array) if "first" in key else array for key, array in arrays.items()}
    reordered = {key: array[:, ::-1] if key == "frames" else array for key, array in arrays.items()}
    np.testing.assert_array_equal(layout.assemble(arrays)[0].observation, want)
    for broken in (unflagged, reordered):
        assert not np.array_equal(layout.assemble(broken)[0].observation, want)


def test_frames_are_stored_once():
    """Sequences of 81 rows, one every 40: 44 frames are stored for 40 rows, in place of 160."""
    environment = EnvironmentSpec(
        observation=ArraySpec(shape=(4, 84, 84), dtype="uint8", stacked=True), action=DiscreteAction(count=6)
    )
    layout = make_layout(ReplaySpec(trace=80, n_step=1, period=40), environment, {})
    assert layout.signature["frames"][0] == (2, 44, 84, 84)
    small = 4 + 4 + 4 + 4  # action, reward, four flags, version
    assert layout.signature["rows"][0] == (2, 41, small)
    assert layout.step_nbytes == 44 * 84 * 84 / 40 + 41 * small / 40
    assert layout.step_nbytes < 0.28 * 4 * 84 * 84


def test_a_sequence_that_periods_do_not_divide_still_uses_segments():
    """R2D2 with n_step=5: 125 rows, one sequence every 40: three segments, the last with 5 rows beyond its 40."""
    layout = make_layout(ReplaySpec(burn_in=40, trace=80, n_step=5, period=40), environment_spec("pixels"), {})
    assert (layout.units, layout.new_rows, layout.overlap) == (3, 40, 5)
    assert layout.signature["frames"][0] == (3, 48, 6, 5)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"reward": ArraySpec(shape=(), dtype="float32")}, "extras/reward: this name"),
        ({"a/b": ArraySpec(shape=(), dtype="float32")}, "extras/a/b: the names"),
        ({"q": ArraySpec(shape=(), dtype="float64")}, "extras/q: dtype float64"),
        ({"q": ArraySpec(shape=(), dtype="object")}, "extras/q: dtype object"),
        ({"q": ArraySpec(shape=(), dtype="float31")}, "extras/q: dtype 'float31'"),
        ({"q": ArraySpec(shape=(2**30,), dtype="float32")}, "'rows' would hold 36.00 GiB"),
    ],
)
def test_what_cannot_be_stored_is_refused(extras: dict[str, ArraySpec], message: str):
    with pytest.raises(ValueError, match=message):
        make_layout(SPECS["one segment"], environment_spec("flat"), extras)


def test_a_row_that_differs_from_the_layout_is_named():
    environment = environment_spec("dict")
    layout = make_layout(SPECS["segments"], environment, EXTRAS, STATE)
    stream = random_stream(0, environment, 1, 2)
    row, state = stream.rows[0], stream.states[0]
    check_rows(layout, row, state, 2)
    seen = row.observation
    bad: list[tuple[Steps, object, str]] = [
        (row._replace(extras={**row.extras, "more": row.reward}), state, "extras/more is appended, but not"),
        (row._replace(extras={}), state, r"extras/logits float32\[2, 2\] is missing"),
        (row._replace(reward=row.reward.astype("float64")), state, r"reward: got float64\[2\], want float32\[2\]"),
        (
            row._replace(observation={**seen, "eye/pixels": seen["eye/pixels"][:, 1:]}),
            state,
            r"observation/eye/pixels: got uint8\[2, 3",
        ),
        (row._replace(action=row.action[:1]), state, r"action: got int32\[1\], want int32\[2\]"),
        (row._replace(observation={**seen, "depth": seen["eye/flat"]}), state, "observation/depth is appended"),
        (row._replace(observation=seen["eye/flat"]), state, "observation is appended"),
        (row, {"lstm": (state["lstm"][0],)}, "state/lstm/1 .* is missing"),
        (row, (), "state/lstm/0 .* is missing"),
    ]
    for changed, its_state, message in bad:
        with pytest.raises(ValueError, match=message):
            check_rows(layout, changed, its_state, 2)
