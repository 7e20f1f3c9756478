import dataclasses

from configs.fields import comments_of, describe_type, list_fields
from tests.configs.sample import SampleConfig, sample_experiment


def test_every_field_is_listed_once_with_its_value():
    fields = {field.path: field for field in list_fields(sample_experiment())}
    assert len(fields) == len(list_fields(sample_experiment()))
    assert fields["learner.batch_size"].value == 32
    assert fields["agent_config.replay.max_size"].value == 100_000
    assert fields["name"].value == "sample"
    assert "learner" not in fields


def test_comments_come_from_beside_or_above_the_field():
    comments = comments_of(SampleConfig)
    assert comments["widths"] == "of the hidden layers"
    assert comments["torso"] == "Above the field, on two lines."
    assert comments["limit"] == "after a bracket"
    assert comments["discount"] == "of the next step's value"  # inherited
    assert comments["steps"] == ""


def test_types_in_words():
    fields = {field.path: field.type for field in list_fields(sample_experiment())}
    assert fields["agent_config.torso"] == "mlp|cnn"
    assert fields["agent_config.widths"] == "tuple of int"
    assert fields["agent_config.interval"] == "(float, float)"
    assert fields["agent_config.clip"] == "float or none"
    assert fields["environment.options"] == "dict"
    assert fields["learner.batch_size"] == "int"
    assert describe_type(dict[str, int]) == "dict"


def test_a_class_made_at_run_time_has_no_comments():
    assert comments_of(dataclasses.make_dataclass("Made", [("a", int)])) == {}
