import subprocess
import sys

import pytest

from agents import contract, registry
from agents.contract import EXAMPLES, Case, run_checks
from agents.registry import config_type, resolve
from replay.spec import ReplaySpec
from tests.agents import broken
from tests.source_tree import ROOT

SMALLER = {"ppo": {"replay": ReplaySpec(queue=True, trace=16, n_step=1, period=16, max_size=64)}}  # for images
CASES = [(agent, environment) for agent in registry.MAKERS for environment in ("vector", "dict")]


@pytest.mark.parametrize(("name", "environment"), CASES)
def test_registered_agents_hold_to_it(name, environment):
    agent = resolve(name)(config_type(name)(), EXAMPLES[environment])
    verdicts = run_checks(agent, EXAMPLES[environment])
    assert [verdict.message for verdict in verdicts if not verdict.passed] == []
    assert len(verdicts) == len(contract.CHECKS) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.MAKERS)
def test_registered_agents_hold_to_it_on_images(name):
    config = config_type(name)(network="small_cnn", hidden_sizes=(32,), **SMALLER.get(name, {}))
    verdicts = run_checks(resolve(name)(config, EXAMPLES["image"]), EXAMPLES["image"])
    assert [verdict.message for verdict in verdicts if not verdict.passed] == []


@pytest.mark.parametrize("fault", broken.FAULTS)
def test_every_fault_is_found_by_the_check_for_it(fault):
    make, name = broken.FAULTS[fault]
    check = next(check for check in contract.CHECKS if check.__name__ == name)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - what it says is looked at below
        check(Case(make(), broken.ENVIRONMENT))
    assert "()" in str(caught.value) or "state" in str(caught.value)  # says where
    assert str(caught.value).endswith(".")


def test_a_fault_does_not_hide_the_checks_after_it(monkeypatch):
    def raises(case):
        raise KeyError("name")

    monkeypatch.setattr(contract, "CHECKS", (raises, contract.limits_are_no_deaths, contract.states_are_arrays))
    verdicts = run_checks(broken.deaths_for_limits(), broken.ENVIRONMENT)
    assert [verdict.passed for verdict in verdicts] == [False, False, True]
    assert verdicts[0].message == "KeyError: 'name'"
    assert verdicts[1].check == "limits_are_no_deaths"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["impala"], 0, f"{len(contract.CHECKS)} of {len(contract.CHECKS)} checks hold"),
        (["impala", "--environment=continuous"], 1, "chooses among discrete actions"),
        (["impla"], 1, "Did you mean impala"),
        ([], 1, "Name one agent"),
    ],
)
def test_the_command_line_says_so(arguments, code, said):
    done = subprocess.run(
        [sys.executable, "-m", "agents.contract", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
