import dataclasses
import gc
import sys

import pytest

from agents import registry
from agents.apex_dqn.config import ApexConfig
from agents.impala.config import ImpalaConfig
from agents.registry import config_type, resolve


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    size: int = 3


def make_agent(config: OwnConfig, environment: object) -> object:
    return config, environment


def make_untold(config, environment):
    return config, environment


def make_of_a_number(config: int, environment: object) -> object:
    return config, environment


@pytest.mark.parametrize("name", registry.MAKERS)
def test_every_registered_agent_is_there(name):
    made = resolve(name)
    assert made.__module__ == f"agents.{name}.agent"
    assert made.__name__ == "make_agent"


def test_no_collection_falls_into_the_import_of_an_agent(tmp_path, monkeypatch):
    """One that does ends the process where jaxlib registers pytrees: agents/collector.py."""
    (tmp_path / "agent_that_looks.py").write_text("import gc\nseen = gc.isenabled()\ndef make_agent(config, spec): ...")
    monkeypatch.syspath_prepend(tmp_path)
    assert sys.modules[resolve("agent_that_looks:make_agent").__module__].seen is False
    assert gc.isenabled()


def test_an_agent_from_outside_is_named_by_its_path():
    assert resolve(f"{__name__}:make_agent") is make_agent


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("impla", "Did you mean impala"),
        ("zzz", "agent=my_package.my_module:make_agent"),
        ("no_such_package.agent:make_agent", "no module 'no_such_package'"),
        ("agents.no_such:make_agent", "no module 'agents.no_such'"),
        ("agents.impala.agent:make_agnt", "Did you mean make_agent"),
        ("agents.names:annotations_that_are_not_there", "no function"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(agent, said):
    with pytest.raises(ValueError, match=said) as caught:
        resolve(agent)
    assert repr(agent) in str(caught.value)


def test_a_module_that_an_agent_lacks_is_not_taken_for_the_agent(tmp_path, monkeypatch):
    (tmp_path / "lacking_agent.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        resolve("lacking_agent:make_agent")


def test_the_config_is_what_the_first_parameter_says():
    assert config_type("impala") is ImpalaConfig
    assert config_type("apex_dqn") is ApexConfig
    assert config_type(f"{__name__}:make_agent") is OwnConfig


@pytest.mark.parametrize("function", ["make_untold", "make_of_a_number"])
def test_a_config_that_is_not_told_is_asked_for(function):
    with pytest.raises(ValueError, match="Annotate it with the agent's config dataclass"):
        config_type(f"{__name__}:{function}")
