"""A launcher of small roles: run by tests that end launchers in all sorts of ways.

python -m tests.launch.small_program DIRECTORY warm|spawn GRACE ROLE=FUNCTION ...
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from configs.experiment import Experiment
from launch.hub import RoleState
from launch.program import Outcome, run_program
from launch.roles import Assignment

MODULE = "tests.launch.small_roles"


def run_small(
    directory: Path, start: Literal["warm", "spawn"], grace: float, plays: Sequence[str], **options
) -> Outcome:
    """Runs a program. plays: e.g. "actor=patient", once for each role."""
    experiment = Experiment(name="small", agent="none", agent_config=None)
    assignments: list[Assignment] = []
    functions = {}
    for play in plays:
        role, _, function = play.partition("=")
        index = sum(other.role == role for other in assignments)
        assignments.append(
            Assignment(role=role, index=index, experiment=experiment, addresses=(), run_directory=directory)
        )
        functions[role] = f"{MODULE}:{function}"
    options = {"modules": [MODULE]} | options
    return run_program(assignments, start=start, grace=grace, functions=functions, **options)


def main() -> None:
    directory = Path(sys.argv[1])

    def show(states: Mapping[str, RoleState]) -> None:
        told = {name: {"status": state.status, "pid": state.pid} for name, state in states.items()}
        (directory / "states.new").write_text(json.dumps(told))
        (directory / "states.new").rename(directory / "states.json")

    outcome = run_small(
        directory, "spawn" if sys.argv[2] == "spawn" else "warm", float(sys.argv[3]), sys.argv[4:], on_tick=show
    )
    (directory / "outcome.json").write_text(json.dumps(outcome._asdict()))
    sys.exit(outcome.code)


if __name__ == "__main__":
    main()
