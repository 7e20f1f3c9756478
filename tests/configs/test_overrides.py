import dataclasses
import math

import pytest

from agents.registry import config_type
from configs.experiment import Experiment
from configs.overrides import OverrideError, apply_overrides
from tests.configs import sample
from tests.configs.sample import SampleConfig, sample_experiment


def get(experiment: Experiment, path: str) -> object:
    value: object = experiment
    for name in path.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("override", "want"),
    [
        ("learner.batch_size=256", 256),
        ("learner.batch_size = 256 ", 256),
        ("run.environment_steps=1_000_000", 1_000_000),
        ("run.environment_steps=1e6", 1_000_000),
        ("agent_config.replay.max_size=2_000", 2_000),
        ("run.target_return=inf", math.inf),
        ("run.target_return=-1.5e2", -150.0),
        ("run.seconds=60", 60.0),
        ("run.start=spawn", "spawn"),
        ("run.directory=/tmp/a=b", "/tmp/a=b"),
        ("agent_config.discount=0.5", 0.5),
        ("agent_config.dueling=false", False),
        ("agent_config.dueling=Yes", True),
        ("agent_config.widths=128,32", (128, 32)),
        ("agent_config.widths=(128,)", (128,)),
        ("agent_config.widths=[128, 32]", (128, 32)),
        ("agent_config.widths=()", ()),
        ("agent_config.interval=0,inf", (0.0, math.inf)),
        ("agent_config.clip=0.5", 0.5),
        ("agent_config.clip=none", None),
        ("agent_config.either=1,2", (1, 2)),
        ("agent_config.either=auto", "auto"),
        ("agent_config.anything={'a': (1, 2)}", {"a": (1, 2)}),
        ("agent_config.anything=word", "word"),
        ("environment.options={'frame_skip': 4}", {"frame_skip": 4}),
    ],
)
def test_value_is_read_as_the_type_of_its_field(override: str, want: object):
    got = get(apply_overrides(sample_experiment(), [override]), override.split("=")[0].strip())
    assert got == want
    assert type(got) is type(want)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learner.batch_size=2.5", ["learner.batch_size", "'2.5'", "int", "whole number"]),
        ("learner.batch_size=inf", ["learner.batch_size", "whole number"]),
        ("learner.batch_size=many", ["learner.batch_size", "'many'", "int"]),
        ("learner.batch_size=true", ["learner.batch_size", "'true'", "int"]),
        ("run.seconds=soon", ["run.seconds", "'soon'", "float"]),
        ("run.target_return=nan", ["run.target_return", "nan"]),
        ("run.start=worm", ["run.start", "'worm'", "warm|spawn", "did you mean warm?"]),
        ("agent_config.dueling=2", ["agent_config.dueling", "'2'", "bool", "true or false"]),
        ("agent_config.interval=1", ["agent_config.interval", "(float, float)", "2 entries"]),
        ("agent_config.widths=1,x", ["agent_config.widths", "tuple of int", "'1,x'"]),
        ("agent_config.clip=off", ["agent_config.clip", "float or none"]),
        ("environment.options=4", ["environment.options", "dict", "FIELD.key=1"]),
        ("learner.batchsize=4", ["learner.batchsize", "Did you mean learner.batch_size"]),
        ("batch_size=4", ["Did you mean learner.batch_size"]),
        ("max_size=4", ["Did you mean agent_config.replay.max_size"]),
        ("agent_config.max_size=4", ["agent_config.replay.max_size"]),
        ("lerner.batch_size=4", ["Did you mean learner.batch_size"]),
        ("learner.batch_size.x=4", ["no field learner.batch_size.x"]),
        ("zzzzzz=4", ["no field zzzzzz", "--help"]),
        ("learner=4", ["learner is a group", "learner.batch_size"]),
        ("agent_config=4", ["agent_config is a group", "agent_config.replay.max_size"]),
        ("learner.batch_size", ["'learner.batch_size'", "field=value"]),
        ("=4", ["field=value"]),
    ],
)
def test_error_says_field_got_and_want(override: str, words: list[str]):
    with pytest.raises(OverrideError) as caught:
        apply_overrides(sample_experiment(), [override])
    for word in words:
        assert word in str(caught.value)


def test_nothing_but_the_named_fields_changes():
    changed = apply_overrides(sample_experiment(), ["learner.batch_size=7", "agent_config.replay.n_step=3"])
    assert changed != sample_experiment()
    back = dataclasses.replace(
        changed,
        learner=dataclasses.replace(changed.learner, batch_size=32),
        agent_config=dataclasses.replace(
            changed.agent_config, replay=dataclasses.replace(changed.agent_config.replay, n_step=1)
        ),
    )
    assert back == sample_experiment()
    assert apply_overrides(sample_experiment(), []) == sample_experiment()


def test_only_the_final_combination_is_judged():
    together = ["agent_config.replay.period=40", "agent_config.replay.trace=40"]
    assert apply_overrides(sample_experiment(), together).agent_config.replay.period == 40
    with pytest.raises(ValueError, match=r"replay\.period=40 must be <= trace=20"):  # control
        apply_overrides(sample_experiment(), together[:1])


def test_of_two_for_one_field_the_last_wins():
    assert apply_overrides(sample_experiment(), ["run.seed=1", "run.seed=2"]).run.seed == 2


def test_one_key_of_a_dict_field():
    first = apply_overrides(sample_experiment(), ["environment.options.a=1", "environment.options.b.c=x"])
    assert first.environment.options == {"a": 1, "b": {"c": "x"}}
    second = apply_overrides(first, ["environment.options.a=2.5"])
    assert second.environment.options == {"a": 2.5, "b": {"c": "x"}}
    assert first.environment.options["a"] == 1
    with pytest.raises(OverrideError, match="either the one or the other"):
        apply_overrides(first, ["environment.options.a=1", "environment.options={}"])
    with pytest.raises(OverrideError, match="either the one or the other"):
        apply_overrides(first, ["environment.options={}", "environment.options.a=1"])


def test_agent_switches_its_config_wherever_it_stands():
    start = dataclasses.replace(sample_experiment(), agent="other", agent_config=None)
    agent = "tests.configs.sample:make_agent"
    changed = apply_overrides(start, ["agent_config.widths=8", f"agent={agent}"])
    assert changed.agent == agent
    assert changed.agent_config == SampleConfig(widths=(8,))


def test_naming_the_agent_that_it_has_keeps_its_config():
    tuned = apply_overrides(sample_experiment(), ["agent_config.widths=8"])
    assert apply_overrides(tuned, [f"agent={tuned.agent}"]) == tuned


def test_agent_whose_config_extends_the_present_one_keeps_its_numbers():
    tuned = apply_overrides(sample_experiment(), ["agent_config.widths=8", "agent_config.replay.max_size=2_000"])
    changed = apply_overrides(tuned, ["agent=tests.configs.sample:make_larger_agent", "agent_config.atoms=3"])
    fields = {field.name: getattr(tuned.agent_config, field.name) for field in dataclasses.fields(SampleConfig)}
    assert changed.agent_config == sample.LargerConfig(**fields, atoms=3)
    back = apply_overrides(changed, [f"agent={tuned.agent}"])
    assert back.agent_config == SampleConfig()


def test_agent_that_does_not_say_its_config():
    with pytest.raises(OverrideError, match="Annotate it"):
        apply_overrides(sample_experiment(), ["agent=tests.configs.sample:make_agent_without_annotation"])


def test_unknown_agent_gets_an_error():
    with pytest.raises(ValueError, match="impal"):
        apply_overrides(sample_experiment(), ["agent=impal"])


def test_config_type_is_read_off_the_factory():
    assert config_type("tests.configs.sample:make_agent") is sample.SampleConfig
