"""Launches a whole program on this machine: replay shards, actors, a learner, an evaluator and a monitor.

python -m launch.local --config=apex_cartpole --set learner.batch_size=256 run.seed=1
python -m launch.local --resume=runs/latest --set run.environment_steps=1e6
"""

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import app, flags

from agents import collector
from configs.experiment import Experiment
from launch import command_line, resume
from launch.display import Display
from launch.placement import devices_of, gpus
from launch.processes import COORDINATOR, role_environment
from launch.program import Outcome, run_program
from launch.restarts import policy_of
from launch.roles import Assignment, counts_of
from launch.run_checkpoints import tied
from launch.run_directory import RunDirectory, make_run_directory

USAGE = (
    "       --dry_run     print the program (nodes, tables, limits, memory) and check everything; start nothing",
    "       --resume=RUN  instead of --config: go on with a run, e.g. runs/latest, from its newest whole checkpoint;",
    "                     with --resume_migrate also where the replay's settings changed: its tables begin empty",
    "",
    "Ends at run.target_return, run.environment_steps, run.learner_steps or run.seconds, or at Ctrl-C. The last lines",
    "say what was reached and where the files are. Exit code 0: it reached its end; 130 or 143: it was stopped by a",
    "signal; 1: a role failed, whose last words are at the end of the output; 2: the command line can't work.",
)


def assignments_of(experiment: Experiment, addresses: Sequence[str], run_directory: Path) -> list[Assignment]:
    """Every process's part."""
    counts = {"preflight": 1, **counts_of(experiment)}  # preflight ends before the others start
    return [
        Assignment(
            role=role, index=index, experiment=experiment, addresses=tuple(addresses), run_directory=run_directory
        )
        for role, count in counts.items()
        for index in range(count)
    ]


def environments_of(experiment: Experiment, assignments: Sequence[Assignment]) -> dict[str, Mapping[str, str]]:
    """The environment variables of every process: only the learner may have more than one CPU thread. Several learner
    processes are told where to meet.
    """
    learner = experiment.learner
    meeting = {COORDINATOR: free_addresses(1)[0]} if learner.processes > 1 else {}
    return {
        each.name: role_environment(
            each.role,
            devices_of(experiment, each.role, each.index),
            forced=not gpus(),
            threads=learner.threads if each.role == "learner" else 1,
        )
        | (meeting if each.role == "learner" else {})
        for each in assignments
    }


def free_addresses(count: int) -> list[str]:
    """Loopback addresses with different ports that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def run(experiment: Experiment, directory: RunDirectory) -> int:
    """Runs the program to its end in a run's folder, shown in this terminal; the exit code."""
    assignments = assignments_of(experiment, free_addresses(experiment.topology.shards), directory.path.resolve())
    with tied(directory, experiment), Display(directory.path, experiment.name) as display:
        outcome = run_program(
            assignments,
            start=experiment.run.start,
            environments=environments_of(experiment, assignments),
            on_tick=display.update,
            policy=policy_of(experiment.supervision),
            silence=experiment.supervision.silence,
        )
        display.close(outcome.reason)
    say_failure(outcome)
    return outcome.code


def go_on(path: str, overrides: Sequence[str]) -> int:
    """Runs a run's program again, from its newest whole checkpoint; the exit code.

    Raises:
        ValueError: it can't be gone on with; the message says why.
    """
    if flags.FLAGS.config or flags.FLAGS.dry_run:
        raise ValueError("--resume takes the experiment from the run's folder: leave out --config and --dry_run.")
    directory = RunDirectory(Path(path).resolve())  # `latest` will point elsewhere one day
    before, experiment = resume.resumed_experiments(directory, overrides, migrate=flags.FLAGS.resume_migrate)
    with resume.claimed(directory):
        for line in resume.go_back(directory, before, experiment):
            print(line, flush=True)
        resume.reopen(directory, experiment)
        return run(experiment, directory)


def say_failure(outcome: Outcome) -> None:
    """What went wrong, the first cause last, where people look."""
    for problem in outcome.problems:
        print(problem, file=sys.stderr)
    if outcome.failure:
        print(outcome.failure, file=sys.stderr)


def main(argv: Sequence[str]) -> int:
    """Checks, then runs."""
    overrides = [*flags.FLAGS.set, *argv[1:]]
    try:
        if flags.FLAGS.resume:
            return go_on(flags.FLAGS.resume, overrides)
        experiment = command_line.experiment_of(flags.FLAGS.config, overrides)
        if flags.FLAGS.dry_run:
            command_line.quieten()
            with collector.held():
                from launch import preflight  # loads JAX and TensorFlow, which takes seconds

            print("\n".join(preflight.check(experiment, Path(experiment.run.directory))))
            return 0
        directory = make_run_directory(experiment)
        with resume.claimed(directory):
            return run(experiment, directory)
    except (ValueError, ImportError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(command_line.help_text("launch.local", __doc__, USAGE))
        sys.exit(0)
    command_line.define_flags()
    flags.DEFINE_string("resume", "", "A run's folder to go on with, e.g. runs/latest; instead of --config.")
    flags.DEFINE_bool("resume_migrate", False, "With --resume: go on with empty tables where the old ones don't fit.")
    flags.DEFINE_bool("dry_run", False, "Print the program and check everything; start nothing.")
    app.run(main, flags_parser=command_line.parse)
