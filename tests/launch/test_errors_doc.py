"""Every line of docs/errors.md: what is given is refused, in those words, before anything starts."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch import command_line, preflight
from tests.source_tree import ROOT

ROWS = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
FIXES = (
    "Set", "set one of", "Did you mean", "did you mean", "Start from", "Run the command", "Leave", "Change",
    "Its options", "want", "Free some", "is named as", "of type",
)  # fmt: skip
FIX = re.compile(rf"\b({'|'.join(FIXES)})\b")
# It is no value that is wrong there, or not one that whoever refuses it was given.
ABOUT_THE_FIELD = re.compile(
    r"There is no field|is a group of fields|which CartPole-v1 doesn't take|this environment takes"
)


def check(config: str, overrides: list[str]) -> Sequence[str]:
    experiment = command_line.experiment_of(config, overrides)
    return preflight.check(experiment, Path(experiment.run.directory))


def test_the_page_has_what_it_promises() -> None:
    assert len(ROWS) >= 50
    assert len({given for given, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("given", "words"), ROWS, ids=[given for given, _ in ROWS])
def test_bad_input_is_refused_with_its_field_its_value_and_the_fix(given: str, words: str) -> None:
    config, *overrides = given.split()
    with pytest.raises((ValueError, TypeError, ImportError, OSError)) as refused:
        check(config, overrides)
    message = " ".join(str(refused.value).split())
    assert words.replace(r"\|", "|") in message
    assert FIX.search(message)
    field, _, value = (overrides[-1] if overrides else f"config={config}").partition("=")
    assert field.rpartition(".")[2] in message
    if not ABOUT_THE_FIELD.search(message):
        assert value.strip("()").strip(",") in message


def test_good_input_is_not() -> None:
    assert check("apex_cartpole", ["learner.batch_size=32"])
