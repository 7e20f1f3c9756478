"""The numbers of one run: an agent on an environment, and how the program that trains it is laid out.

One default for each number, with its unit; every field can be set on the command line (`--set learner.batch_size=256`).
"""

import dataclasses
from typing import Any, Literal

RoleName = Literal["replay", "actor", "accelerated_actor", "learner", "evaluator", "monitor"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentConfig:
    """Which environment, and how many of them an actor steps."""

    name: str = "CartPole-v1"  # as its library names it
    library: Literal["envpool", "gymnasium", "dm_env"] = "envpool"  # dm_env: name is "package.module:make_environment"
    per_actor: int = 8  # environments in one actor
    threads: int = 1  # EnvPool threads in one actor
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # further keyword arguments of its constructor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TopologyConfig:
    """How many processes of each role."""

    shards: int = 2  # replay servers
    actors: int = 2  # CPU actors
    actors_per_pod: int = 1  # of them in one container of a cluster, forked from one process whose memory they share
    accelerated_actors: int = 0  # actors that act on a device of their own, beside the CPU actors or instead
    evaluators: int = 1  # 0 or 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DevicesConfig:
    """Which devices each role gets, by id; it sees no others. GPUs where there are any, else as many CPU devices."""

    actor: tuple[int, ...] = ()  # one for each accelerated actor, in their order; none: they act on the CPU
    learner: tuple[int, ...] = ()  # the batch is split over them, and they over learner.processes; none: on the CPU


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardConfig:
    """What each replay shard keeps on disk, to begin with when it is started again; queues keep nothing."""

    checkpoint_period: float = 60.0  # seconds between checkpoints, longer where they would take 5 %; 0: none
    checkpoints_kept: int = 2  # the newest ones


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """The learner's loop."""

    batch_size: int = 32  # sequences, over all of its processes and devices
    processes: int = 1  # learner processes, each on devices of its own
    updates_per_call: int = (
        1  # learner steps in one call of the compiled function; more spare dispatch where they are small
    )
    samples_in_flight: int = 64  # items that each process asks each shard for ahead
    prefetch: int = 2  # batches kept ready on the devices
    publish_period: int = 1  # learner steps between publications of the weights (newest only, never waited for)
    max_policy_lag: float = 0.0  # learner steps that a batch of a queue may be behind, else it is dropped; 0: any
    checkpoint_period: float = 60.0  # seconds between checkpoints
    checkpoints_kept: int = 3  # the newest ones
    threads: int = 1  # CPU threads of XLA where the learner runs on a CPU


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ActorConfig:
    """The actors' loop."""

    items_in_flight: int = 48  # items a writer may have unconfirmed at one shard
    items_per_shard: int = 256  # items written to one shard before the round robin moves on
    fetch_period: float = 0.05  # seconds between two looks for newer weights
    report_period: float = 0.5  # seconds between two metrics records


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratedActorConfig:
    """The loop of an accelerated actor; what `actor` says of writing and fetching holds for it too."""

    threads: int = 2  # that alternate on the device: one steps its environments while another's policy computes
    environments: int = 8  # of each thread
    batch_size: int = 4  # environments that one call of the policy acts for: those that were ready first
    environment_threads: int = 1  # that step one thread's environments


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatorConfig:
    """The greedy policy, measured in environments of its own."""

    environments: int = 4  # that it steps at once
    episodes: int = 20  # in one evaluation: the mean return is taken over these
    pause: float = 2.0  # seconds between two evaluations


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SupervisionConfig:
    """What becomes of a role that failed: killed, raised, or ended by itself."""

    restarts: int = 5  # of one role within `window`, each after a longer pause; one more failure ends the run; 0: none
    window: float = 600.0  # seconds
    silence: float = 30.0  # seconds without a sign of life after which a role is killed and has failed; 0: never
    final: tuple[RoleName, ...] = ()  # roles that aren't started again: the first failure of one ends the run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Where a run ends and what it leaves."""

    directory: str = "runs"  # a folder of its own is made in here
    environment_steps: int = 0  # ends after so many, all actors together; 0: no limit
    learner_steps: int = 0  # ends after so many; 0: no limit
    target_return: float = float("inf")  # ends when the mean returns of evaluations reach it
    target_evaluations: int = 3  # so many in a row must reach it: a single one may be luck
    seconds: float = 0.0  # ends after so many; 0: no limit
    seed: int = 0  # of every random number; each process draws others from it
    start: Literal["warm", "spawn"] = "warm"  # roles are forked from one warm process, or are plain interpreters


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Everything about one run."""

    name: str  # of the preset; names the run's folder
    agent: str  # a name from agents.registry, or "package.module:make_agent"
    agent_config: Any  # the frozen dataclass that agent's make_agent takes; holds the ReplaySpec as `.replay`
    environment: EnvironmentConfig = EnvironmentConfig()
    topology: TopologyConfig = TopologyConfig()
    devices: DevicesConfig = DevicesConfig()
    actor: ActorConfig = ActorConfig()
    accelerated: AcceleratedActorConfig = AcceleratedActorConfig()
    shard: ShardConfig = ShardConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    run: RunConfig = RunConfig()
