import os
import subprocess
import sys
from typing import Any

import pytest

from configs.experiment import EnvironmentConfig
from launch.environments.factory import environment_spec, make_environments

LIST_IMPORTS = """
import sys
from configs.experiment import EnvironmentConfig
from launch.environments.factory import make_environments
make_environments(EnvironmentConfig(library={library!r}), 1, 0).reset()
print("envpool" in sys.modules, "gymnasium" in sys.modules)
"""


def imports(library: str) -> str:
    command = [sys.executable, "-c", LIST_IMPORTS.format(library=library)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_library_is_imported_only_when_it_is_used() -> None:
    assert imports("gymnasium") == "False True"
    assert imports("envpool") == "True True"  # control; EnvPool imports Gymnasium itself


def test_a_missing_library_names_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_env", None)  # what Python itself sets for "can't be imported"
    monkeypatch.delitem(sys.modules, "launch.environments.dm_env", raising=False)
    with pytest.raises(ImportError, match=r"environment.library='dm_env'.*set environment.library to envpool or"):
        environment_spec(EnvironmentConfig(library="dm_env", name="x:y"))


@pytest.mark.parametrize(
    ("library", "num", "seed", "message"),
    [
        ("gymnasiun", 1, 0, r"environment.library='gymnasiun'.*Did you mean 'gymnasium'"),
        ("envpool", 0, 0, r"environment.per_actor=1"),
        ("envpool", 1, -1, r"run.seed=0"),
        ("envpool", 1, (), r"seed=\(\) must be one or more"),
    ],
)
def test_errors_say_what_to_type(library: Any, num: int, seed: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_environments(EnvironmentConfig(library=library), num, seed)


FORK = """
import os
from configs.experiment import EnvironmentConfig
from launch.environments.factory import LIBRARIES, import_library, make_environments
import numpy as np

for library in LIBRARIES:
    import_library(library)
assert len(os.listdir("/proc/self/task")) == {threads}, os.listdir("/proc/self/task")
children = []
for index in range(2):
    children.append(os.fork())
    if not children[-1]:
        environments = make_environments(EnvironmentConfig(name="Pong-v5"), 2, index, threads=2)
        environments.reset()
        for _ in range(5):
            environments.step(np.zeros(2, np.int32))
        os._exit(0)
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_the_imported_libraries_survive_a_fork() -> None:
    """As roles are forked from a process that has imported everything, and made nothing."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FORK.format(threads=1)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert result.stdout.strip() == "[0, 0]", result.stderr
