"""What each pod of a run asks for, worked out from the experiment: CPU, memory, disk and time."""

import dataclasses
import math

from agents import collector
from configs.experiment import Experiment
from launch.placement import devices_of

MIB = 2**20

# Bytes that a process has beside its role's own: the imports of Reverb, TensorFlow and JAX take 400 to 600 MB.
IMPORTS = 600 * MIB
# Bytes of a role's own before it holds any data: docs/benchmarks.md, "memory that is a role's own", two cores.
OWN = {
    "actor": 65 * MIB,
    "accelerated_actor": 65 * MIB,  # a guess: a CPU actor's, for each thread
    "evaluator": 57 * MIB,
    "learner": 165 * MIB,
    "monitor": 56 * MIB,
    "replay": 29 * MIB,
}
# Full tables differ from memory_of by at most a quarter: tests/replay/test_server.py holds it to that.
TABLES = 1.25
# A role's own memory was measured after a start on CartPole: what a longer run, another environment and network add is
# not measured. A guess, which keeps the limit from killing a pod.
HEADROOM = 2.0
# One thread writes checkpoints at about 53 MiB/s on two cores; a quarter of it, for networked disks.
CHECKPOINT_RATE = 53 * MIB / 4  # bytes/s
IMPORT_SECONDS = 60  # to import everything (7.5 s on two idle cores, docs/benchmarks.md "start") on a busy node
STOP_SECONDS = 30  # to end cleanly: roles need 10 at most
SHARED_MEMORY = 256 * MIB  # of /dev/shm, which counts as memory of the pod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Bytes of a run's data."""

    tables: int  # of one shard's full tables
    item: int  # of one item as sampled
    keeps: bool  # whether shards keep checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What one pod asks for."""

    cpu: float  # cores
    memory: int  # bytes
    start_seconds: int = IMPORT_SECONDS  # until it must have started
    stop_seconds: int = STOP_SECONDS  # between SIGTERM and SIGKILL
    disk: int = 0  # bytes of its volume; 0: it keeps nothing
    gpus: int = 0


def size_of(experiment: Experiment) -> Size:
    """Builds agent, environment and replay once, which loads JAX and takes seconds.

    Raises:
        ValueError: what the experiment asks for can't work on any machine; the message names the field.
    """
    with collector.held():
        from launch.preflight import check_experiment
        from replay.plan import memory_of

    parts, shards = check_experiment(experiment), experiment.topology.shards
    return Size(
        tables=math.ceil(memory_of(parts.agent.replay, parts.layout, shards) / shards),
        item=parts.layout.item_nbytes,
        keeps=bool(not parts.plan.queue and experiment.shard.checkpoint_period),
    )


def needs_of(role: str, experiment: Experiment, size: Size) -> Needs:
    """What one pod of a role asks for."""
    own = int(OWN[role] * HEADROOM)
    base = IMPORTS + own
    writing = experiment.actor.items_in_flight * size.item  # one writer's
    gpus = len(devices_of(experiment, role, 0))
    match role:
        case "replay":
            seconds = math.ceil(size.tables / CHECKPOINT_RATE) if size.keeps else 0
            return Needs(
                cpu=1,
                memory=base + int(size.tables * TABLES),
                start_seconds=IMPORT_SECONDS + seconds,
                stop_seconds=STOP_SECONDS + seconds,
                # The one being written beside those kept.
                disk=(experiment.shard.checkpoints_kept + 1) * size.tables + 1024 * MIB if size.keeps else 0,
            )
        case "actor":
            count = experiment.topology.actors_per_pod
            # An actor that runs free takes a core (docs/benchmarks.md, learner_wait).
            cpu = count * max(1, experiment.environment.threads)
            return Needs(cpu=cpu, memory=IMPORTS + count * (own + writing) + SHARED_MEMORY)
        case "accelerated_actor":
            accelerated = experiment.accelerated
            return Needs(
                cpu=accelerated.threads * accelerated.environment_threads + 1,  # acting, and a core for what writes
                memory=IMPORTS + accelerated.threads * (own + writing),
                gpus=gpus,
            )
        case "learner":
            learner = experiment.learner
            batches = (learner.prefetch + 2) * learner.batch_size  # prefetched, being trained on, being assembled
            items = batches + learner.samples_in_flight * experiment.topology.shards
            return Needs(
                cpu=learner.threads + 1,  # reading takes a core beside the update's (docs/benchmarks.md, learner_wait)
                memory=base + items * size.item + SHARED_MEMORY,
                disk=1024 * MIB * (learner.checkpoints_kept + 1),  # a guess: states of megabytes fit by far
                gpus=gpus,
            )
        case "evaluator":
            return Needs(cpu=1, memory=base)
        case "monitor":
            return Needs(cpu=0.5, memory=base, disk=1024 * MIB)
    raise ValueError(f"role={role!r} has no needs. Choose one of {', '.join(OWN)}.")
