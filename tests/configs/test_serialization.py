import dataclasses
import json
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from configs import serialization
from configs.experiment import EnvironmentConfig, Experiment
from tests.configs.sample import SampleConfig, sample_experiment

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text().filter(lambda key: not key.startswith("!"))
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


def same(left: object, right: object) -> bool:
    """Equal, types included: (1,) == [1] is False anyway, but 1 == 1.0 == True."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@hypothesis.given(
    options=st.dictionaries(KEYS, ANYTHING),
    anything=ANYTHING,
    widths=st.lists(st.integers()).map(tuple),
    interval=st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
    clip=st.none() | st.floats(allow_nan=False),
    either=st.text() | st.lists(st.integers()).map(tuple),
)
def test_round_trip_is_exact(options, anything, widths, interval, clip, either):
    config = SampleConfig(widths=widths, interval=interval, clip=clip, anything=anything, either=either)
    before = dataclasses.replace(
        sample_experiment(), agent_config=config, environment=EnvironmentConfig(options=options)
    )
    after = serialization.from_json(serialization.to_json(before))
    assert after == before
    assert same(after.environment.options, options)
    assert same(after.agent_config.anything, anything)
    assert serialization.digest_of(after) == serialization.digest_of(before)


def test_text_is_strict_json_and_plain_where_types_are_known():
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(serialization.to_json(sample_experiment()), parse_constant=refuse)
    assert data["learner"]["batch_size"] == 32
    assert data["agent_config"]["!dataclass"] == "tests.configs.sample:SampleConfig"
    assert data["agent_config"]["widths"] == [64, 64]
    assert data["run"]["target_return"] == {"!float": "inf"}
    assert serialization.from_json(json.dumps(data)).run.target_return == math.inf


def test_digest_tells_experiments_apart():
    one = sample_experiment()
    other = dataclasses.replace(one, run=dataclasses.replace(one.run, seed=1))
    assert serialization.digest_of(one) == serialization.digest_of(sample_experiment())
    assert serialization.digest_of(one) != serialization.digest_of(other)


def edit(change) -> str:
    data = json.loads(serialization.to_json(sample_experiment()))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["learner"].pop("batch_size"), r"experiment\.learner .* missing \['batch_size'\]"),
        (lambda data: data["learner"].update(bach_size=1), r"experiment\.learner .* unknown \['bach_size'\]"),
        (lambda data: data["agent_config"].update({"!dataclass": "nowhere:Config"}), "agent_config .* imported"),
        (lambda data: data["agent_config"].update({"!dataclass": "os:getcwd"}), "no dataclass"),
        (lambda data: data["agent_config"]["replay"].update(period=99), r"replay\.period=99"),
    ],
)
def test_text_of_another_version_is_refused(change, message: str):
    assert isinstance(serialization.from_json(edit(lambda data: None)), Experiment)  # control
    with pytest.raises(ValueError, match=message):
        serialization.from_json(edit(change))


def test_what_json_can_not_hold_is_refused_with_its_path():
    for value, words in (
        (object(), "agent_config.anything is a object"),
        ({1: 2}, "agent_config.anything has the key 1"),
    ):
        config = SampleConfig(anything=value)
        with pytest.raises(TypeError, match=words):
            serialization.to_json(dataclasses.replace(sample_experiment(), agent_config=config))


def test_config_that_could_not_be_found_again_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Local:
        number: int = 1

    with pytest.raises(TypeError, match="top of a module"):
        serialization.to_json(dataclasses.replace(sample_experiment(), agent_config=Local()))
