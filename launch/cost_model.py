"""What a topology will do, from what its parts cost. Pure.

All rates follow from two: environment steps/s and learner steps/s. Replay ties them together, where samples per insert
or a queue do, and the first thing that is used up bounds them.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from configs.experiment import Experiment
from launch.roles import counts_of
from replay.plan import ShardPlan
from replay.publication import PERIOD_S

SHARD_CORES = 1.0  # that a shard can use: one thread of its table does most of the work


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ActorCosts:
    """Of one actor's process."""

    cpu: float  # CPU seconds for an environment step
    rate: float  # environment steps/s while nothing holds it up
    items: float  # written for an environment step


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Of an experiment's parts. CPU seconds are those of one core, over all threads of a process."""

    actors: Mapping[str, ActorCosts]  # by role: "actor", "accelerated_actor"
    learner_cpu: float  # CPU seconds of one learner process for a learner step, reading included
    learner_rate: float  # learner steps/s while data is there
    insert_cpu: float  # CPU seconds of a shard for an item written
    sample_cpu: float  # CPU seconds of a shard for an item read, its new priority included
    insert_bytes: float  # of an item on its way to the shard, as compressed
    sample_bytes: float  # of an item on its way to the learner, as compressed
    weights_bytes: float  # of one publication
    monitor_cpu: float  # CPU seconds a second


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What of an experiment its rates depend on."""

    actors: Mapping[str, int]  # by role
    shards: int
    learners: int
    evaluators: int
    batch_size: int  # items, over all learner processes
    publish_period: int  # learner steps
    fetch_period: float  # seconds
    samples_per_insert: float  # 0: actors and learner run free of each other

    @property
    def all_actors(self) -> int:
        """Actors of all kinds."""
        return sum(self.actors.values())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What a program does in a second."""

    environment_steps: float
    learner_steps: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What one process uses. Cores, and bytes/s."""

    cores: float
    received: float
    sent: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What a program will do, and what it uses."""

    rates: Rates
    bottleneck: str  # in words: what bounds them
    loads: Mapping[str, Load]  # of one process of each role
    shards: int | None  # at least, so that no shard is a bottleneck at these rates; None: however many, they are


def setting_of(experiment: Experiment, plan: ShardPlan) -> Setting:
    """Of an experiment; a queue gives each item once."""
    topology = experiment.topology
    return Setting(
        actors={
            role: count
            for role, count in counts_of(experiment).items()
            if role in ("actor", "accelerated_actor") and count
        },
        shards=topology.shards,
        learners=experiment.learner.processes,
        evaluators=topology.evaluators,
        batch_size=experiment.learner.batch_size,
        publish_period=experiment.learner.publish_period,
        fetch_period=experiment.actor.fetch_period,
        samples_per_insert=plan.samples_per_insert,
    )


def loads(setting: Setting, costs: Costs, rates: Rates) -> dict[str, Load]:
    """What one process of each role uses at given rates; the actors are taken to be equally fast for their kind."""
    written, read = _written(setting, costs, rates.environment_steps), rates.learner_steps * setting.batch_size
    publications = _publications(setting, rates)
    fetches = min(publications, 1 / setting.fetch_period)
    weights = costs.weights_bytes
    clients = (setting.all_actors + setting.evaluators) / setting.shards  # each fetches from one shard
    # Summing gradients around a ring of processes: each sends, and receives, all but its own part, twice.
    gradients = 2 * (1 - 1 / setting.learners) * weights * rates.learner_steps
    found = {
        "replay": Load(
            cores=(written * costs.insert_cpu + read * costs.sample_cpu) / setting.shards,
            received=written * costs.insert_bytes / setting.shards + publications * weights,
            sent=read * costs.sample_bytes / setting.shards + clients * fetches * weights,
        ),
        "learner": Load(
            cores=rates.learner_steps * costs.learner_cpu,
            received=read * costs.sample_bytes / setting.learners + gradients,
            sent=publications * weights * setting.shards + gradients,
        ),
    }
    for role, share in _shares(setting, costs).items():
        own = costs.actors[role]
        steps = rates.environment_steps * share / setting.actors[role]
        found[role] = Load(
            cores=steps * own.cpu, received=fetches * weights, sent=steps * own.items * costs.insert_bytes
        )
    return found


def _shares(setting: Setting, costs: Costs) -> dict[str, float]:
    """Of all environment steps, by kind of actor."""
    speeds = {role: count * costs.actors[role].rate for role, count in setting.actors.items()}
    return {role: speed / sum(speeds.values()) for role, speed in speeds.items()}


def _written(setting: Setting, costs: Costs, environment_steps: float) -> float:
    """Items/s."""
    return environment_steps * sum(share * costs.actors[role].items for role, share in _shares(setting, costs).items())


def on_own_cores(setting: Setting, costs: Costs, bytes_per_second: float) -> Forecast:
    """Every process has the cores that it can use, and a network link of its own, as on a cluster.

    Args:
        setting: the topology.
        costs: of its parts.
        bytes_per_second: that one process can send, and receive at the same time.
    """
    rates, bottleneck = _tied(setting, costs)
    return _bounded(setting, costs, rates, bottleneck, bytes_per_second)


def at(setting: Setting, costs: Costs, rates: Rates, bytes_per_second: float) -> Forecast:
    """What given rates ask for, whatever machine reaches them; the bottleneck is what is asked too much of, if any."""
    found = loads(setting, costs, rates)
    over = [(factor, what) for factor, what in _limits(found, bytes_per_second) if factor < 1]
    return Forecast(
        rates=rates,
        bottleneck=min(over)[1] if over else "none of shards and network",
        loads=found,
        shards=_shards_needed(setting, costs, rates, bytes_per_second),
    )


def completed(setting: Setting, costs: Costs, environment_steps: float, learner_steps: float) -> Rates:
    """Rates of which one may be 0: then it is what replay ties it to, or what it is by itself."""
    tie = _learner_steps_for_each(setting, costs)
    if not environment_steps:
        environment_steps = learner_steps / tie if tie else _acting(setting, costs)
    if not learner_steps:
        learner_steps = environment_steps * tie if tie else costs.learner_rate
    return Rates(environment_steps=environment_steps, learner_steps=learner_steps)


def on_one_machine(setting: Setting, costs: Costs, cores: int) -> Forecast:
    """All processes share the cores of one machine. Who runs free gets as much of them as everybody else who does."""
    free = cores - costs.monitor_cpu
    busy = setting.all_actors + setting.learners + setting.evaluators  # processes that always have something to do
    if setting.samples_per_insert:
        rates, bottleneck = _tied(setting, costs)
        used = _cores_used(setting, costs, rates)
        evaluating = setting.evaluators * min(1.0, free / busy)
        if used > free - evaluating:
            rates = _scaled(rates, (free - evaluating) / used)
            bottleneck = f"the {cores} cores of this machine"
    else:
        free_rates = Rates(environment_steps=_acting(setting, costs), learner_steps=costs.learner_rate)

        def fits(share: float) -> bool:  # of a core for each busy process; shards work for them beside that
            used = _cores_used(setting, costs, _scaled(free_rates, share))
            return used + share * setting.evaluators <= free

        share = _largest(fits)
        rates = _scaled(free_rates, share)
        bottleneck = "actors and learner, which run free" if share == 1.0 else f"the {cores} cores of this machine"
    return _bounded(setting, costs, rates, bottleneck, math.inf)


def _cores_used(setting: Setting, costs: Costs, rates: Rates) -> float:
    """By actors, learners and shards together."""
    counts = {"replay": setting.shards, "learner": setting.learners, **setting.actors}
    return sum(counts[role] * load.cores for role, load in loads(setting, costs, rates).items())


def _tied(setting: Setting, costs: Costs) -> tuple[Rates, str]:
    """The rates that actors and learner have beside each other, and which of them bounds the other."""
    acting, learning, tie = _acting(setting, costs), costs.learner_rate, _learner_steps_for_each(setting, costs)
    if not tie:
        return Rates(environment_steps=acting, learner_steps=learning), "actors and learner, which run free"
    if acting * tie <= learning:
        return Rates(environment_steps=acting, learner_steps=acting * tie), "the actors"
    return Rates(environment_steps=learning / tie, learner_steps=learning), "the learner"


def _acting(setting: Setting, costs: Costs) -> float:
    """Environment steps/s of all actors while nothing holds them up."""
    return sum(count * costs.actors[role].rate for role, count in setting.actors.items())


def _learner_steps_for_each(setting: Setting, costs: Costs) -> float:
    """Environment step that replay asks for; 0: it ties nothing."""
    return _written(setting, costs, 1.0) * setting.samples_per_insert / setting.batch_size


def _bounded(setting: Setting, costs: Costs, rates: Rates, bottleneck: str, bytes_per_second: float) -> Forecast:
    """Slowed down to what shards and network can take."""

    def worst(share: float) -> tuple[float, str]:
        return min(_limits(loads(setting, costs, _scaled(rates, share)), bytes_per_second))

    wanted = _shards_needed(setting, costs, rates, bytes_per_second)
    share = _largest(lambda share: worst(share)[0] >= 1)
    if share < 1:
        bottleneck = worst(1.0)[1]
        rates = _scaled(rates, share)
    return Forecast(rates=rates, bottleneck=bottleneck, loads=loads(setting, costs, rates), shards=wanted)


def _scaled(rates: Rates, share: float) -> Rates:
    """That share of both."""
    return Rates(environment_steps=rates.environment_steps * share, learner_steps=rates.learner_steps * share)


def _largest(fits: Callable[[float], bool]) -> float:
    """The largest share, 0..1, that fits, where all smaller ones do."""
    if fits(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _limits(found: Mapping[str, Load], bytes_per_second: float) -> Iterator[tuple[float, str]]:
    """How many times its load each thing could bear, and what it is."""
    yield SHARD_CORES / max(found["replay"].cores, 1e-12), "the shards' cores"
    for role, load in found.items():
        yield bytes_per_second / max(load.received, load.sent, 1e-12), f"the network of each {role.replace('_', ' ')}"


def _shards_needed(setting: Setting, costs: Costs, rates: Rates, bytes_per_second: float) -> int | None:
    """The fewest that no limit of a shard stops at these rates."""
    one = loads(dataclasses.replace(setting, shards=1), costs, rates)["replay"]
    weights = _publications(setting, rates) * costs.weights_bytes  # which every shard takes, however many there are
    if weights >= bytes_per_second:
        return None
    times = (
        one.cores / SHARD_CORES,
        one.sent / bytes_per_second,
        (one.received - weights) / (bytes_per_second - weights),
    )
    return max(1, math.ceil(max(times)))


def _publications(setting: Setting, rates: Rates) -> float:
    """Of weights, a second, to each shard."""
    return min(rates.learner_steps / setting.publish_period, 1 / PERIOD_S)
