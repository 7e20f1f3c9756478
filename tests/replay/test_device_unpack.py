"""On the device the columns come apart as on the host."""

import jax
import numpy as np
import pytest

from replay.layout import make_layout
from tests.replay.streams import EXTRAS, STATE, environment_spec, random_stream
from tests.replay.test_layout import SPECS, read_back


@pytest.mark.parametrize("observation", ["flat", "pixels", "dict"])
@pytest.mark.parametrize("name", SPECS)
def test_raw_columns_give_the_same_steps_as_unpacked_ones(name, observation):
    environment = environment_spec(observation, continuous=observation == "flat")
    layout = make_layout(SPECS[name], environment, EXTRAS, STATE)
    _, columns = read_back(layout, random_stream(5, environment, 60, 3), 3)[1]
    host = layout.assemble(layout.unpack(columns))
    device = jax.jit(layout.assemble)(columns)
    assert str(jax.tree.structure(host)) == str(jax.tree.structure(device))
    for want, got in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(want, got)
    moved = {**columns, "rows": np.roll(columns["rows"], 1, axis=-1)}  # the control: a byte off is not the same
    assert not np.array_equal(jax.jit(layout.assemble)(moved)[0].action, host[0].action)
