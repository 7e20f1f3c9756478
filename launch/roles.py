"""The roles of a program: what each is given, and the function that plays it."""

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

from configs.experiment import Experiment

# Role name -> "module:function" of type RoleFunction. Named, not imported: a process loads only what its role needs.
FUNCTIONS = {
    "preflight": "launch.preflight:run",
    "replay": "launch.replay_shard:run",
    "actor": "launch.actor:run",
    "accelerated_actor": "launch.accelerated_actor:run",
    "learner": "launch.learner:run",
    "evaluator": "launch.evaluator:run",
    "monitor": "launch.monitor:run",
}
# Those that any shard serves as well as another: they take the same weights from each, and leave it what they make.
BALANCED = ("actor", "accelerated_actor", "evaluator")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One process's part in a run."""

    role: str  # a key of FUNCTIONS
    index: int  # among those of the same role
    experiment: Experiment
    addresses: tuple[str, ...]  # of all replay shards, "host:port"; shard `index` serves addresses[index]
    run_directory: Path
    balanced: bool = False  # the only address is a load balancer's before all shards: for BALANCED roles

    @property
    def name(self) -> str:
        """E.g. "actor-3"."""
        return f"{self.role}-{self.index}"


def counts_of(experiment: Experiment) -> dict[str, int]:
    """How many processes of each role that stays, in the order that they are started in."""
    topology = experiment.topology
    return {
        "replay": topology.shards,
        "learner": experiment.learner.processes,
        "actor": topology.actors,
        "accelerated_actor": topology.accelerated_actors,
        "evaluator": topology.evaluators,
        "monitor": 1,
    }


def check_address(address: str, flag: str) -> None:
    """Refuses what is no host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{flag} has {address!r}, which is no host:port. Write e.g. shard-0:8000.")


# Plays the role until `stop` is set or its work is done; returns why it ended, in a few words ("" when it was stopped).
RoleFunction = Callable[[Assignment, threading.Event], str]
