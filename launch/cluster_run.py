"""One run on a cluster: what all its formats (Kubernetes, compose, SLURM) say alike. Pure."""

import dataclasses
import re

from configs import serialization
from configs.experiment import Experiment
from launch.processes import STOP_VARIABLE
from launch.roles import BALANCED, check_address, counts_of
from launch.sizing import Needs, Size

PORT = 8000  # of every shard: each has an address of its own
COORDINATOR_PORT = 8476  # of jax.distributed in learner 0
RUN_DIRECTORY = "/var/lib/antiphon"
CONFIG_DIRECTORY = "/etc/antiphon"
LONGEST_NAME = 36  # with "-evaluator", a ReplicaSet's hash and a pod's the 63 characters of a DNS label are full
SHARES = ("actor", "learner")  # roles of several processes in a pod, or of collectives: these use /dev/shm


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run on a cluster."""

    name: str  # begins every object's name
    image: str
    experiment: Experiment
    size: Size
    storage_class: str = ""  # of every volume; "": the cluster's default
    balancer: str = ""  # host:port before all shards, for the roles that any shard serves; "": each shard's own address

    def __post_init__(self) -> None:
        check_name(self.name)
        check_topology(self.experiment)
        if not self.image:
            raise ValueError("--image is missing: nodes pull it. Set --image=REGISTRY/antiphon:TAG.")
        if self.balancer:
            check_address(self.balancer, "--balancer")

    @property
    def addresses(self) -> list[str]:
        """Of every shard, host:port, the same while pods come and go."""
        service = f"{self.name}-replay"
        return [f"{service}-{index}.{service}:{PORT}" for index in range(self.experiment.topology.shards)]

    @property
    def actor_pods(self) -> int:
        """Pods that all actors fill."""
        return self.experiment.topology.actors // self.experiment.topology.actors_per_pod

    @property
    def digest(self) -> str:
        """Of the whole experiment."""
        return serialization.digest_of(self.experiment)


def check_name(name: str) -> None:
    """Refuses a name that objects, pods or hosts can't begin with."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
        fixed = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:LONGEST_NAME].rstrip("-")
        raise ValueError(
            f"--name={name!r} must be a DNS label: lower-case letters, digits and -, a letter first. "
            f"Set --name={fixed or 'run'}."
        )
    if len(name) > LONGEST_NAME:
        raise ValueError(
            f"--name={name!r} has {len(name)} characters, and {LONGEST_NAME} leave room for role, index and hash in a "
            f"DNS label of 63. Set --name={name[:LONGEST_NAME].rstrip('-')}."
        )


def check_topology(experiment: Experiment) -> None:
    """Refuses counts that pods can't be made of."""
    topology = experiment.topology
    for field, value in (
        ("topology.shards", topology.shards),
        ("topology.actors", topology.actors + topology.accelerated_actors),
        ("topology.actors_per_pod", topology.actors_per_pod),
        ("learner.processes", experiment.learner.processes),
    ):
        if value < 1:
            raise ValueError(f"{field}={value} must be at least 1. Set {field}=1 or more.")
    if topology.actors % topology.actors_per_pod:
        nearest = max(1, round(topology.actors / topology.actors_per_pod)) * topology.actors_per_pod
        raise ValueError(
            f"topology.actors={topology.actors} must be a multiple of topology.actors_per_pod="
            f"{topology.actors_per_pod}: every pod holds as many. Set topology.actors={nearest}."
        )


def pods_of(run: Run) -> dict[str, int]:
    """How many pods, or containers, play each role."""
    return counts_of(run.experiment) | {"actor": run.actor_pods}


def environment_of(run: Run, role: str, needs: Needs) -> dict[str, str]:
    """What launch.node takes from the environment; its index comes from the pod."""
    several = run.experiment.learner.processes > 1
    coordinator = f"{run.name}-learner-0.{run.name}-learner:{COORDINATOR_PORT}"
    return {
        "ANTIPHON_CONFIG": f"{CONFIG_DIRECTORY}/config.json",
        "ANTIPHON_ADDRESSES": ",".join(run.addresses),
        "ANTIPHON_RUN_DIRECTORY": RUN_DIRECTORY,
        "HOME": "/tmp",  # caches of libraries: the image is read-only
        STOP_VARIABLE: str(needs.stop_seconds),
        **({"ANTIPHON_BALANCER": run.balancer} if run.balancer and role in BALANCED else {}),
        **({"ANTIPHON_ACTORS_PER_POD": str(run.experiment.topology.actors_per_pod)} if role == "actor" else {}),
        **({"ANTIPHON_COORDINATOR": coordinator} if role == "learner" and several else {}),
        **({"ANTIPHON_INDEX": "0"} if role in ("evaluator", "monitor") else {}),
    }


def command_of(role: str) -> list[str]:
    """What plays a role in a container; the rest is in its environment."""
    return ["python", "-m", "launch.node", f"--role={role}"]


def dns_name(role: str) -> str:
    """A role in the name of an object, a container or a host."""
    return role.replace("_", "-")
