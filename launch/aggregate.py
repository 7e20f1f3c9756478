"""From metrics records to the state of a run. Pure: it reads no clock, no file and no network.

A run's totals outlive its processes: roles restart and their counters begin again at zero, the monitor restarts and
goes on from the totals it saved.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from launch.run_state import HISTORY, RETURN_WINDOW, Evaluation, RoleRecord, RunState, ShardStatus

RATE_WINDOW = 15.0  # seconds that rates and waiting shares are taken over

_SILENT = "no record yet"  # a role's state before its first record

# Of a replay shard's records; what a shard answers when asked is newer, so these only fill in.
SHARD_FIELDS = ("size", "max_size", "inserts", "samples", "blocked")


class Record(Protocol):
    """One metrics record: what a role said at a time (seconds since the epoch, by its own clock)."""

    @property
    def role(self) -> str: ...  # noqa: D102
    @property
    def index(self) -> int: ...  # noqa: D102
    @property
    def time(self) -> float: ...  # noqa: D102
    @property
    def values(self) -> Mapping[str, Any]: ...  # noqa: D102


@dataclasses.dataclass(slots=True)
class Counter:
    """A cumulative count that goes on when its process begins again at zero."""

    base: float = 0.0  # of earlier processes
    last: float = 0.0  # of the present one

    def update(self, value: float) -> None:
        """Takes the newest value, after begin_segment() where it is smaller than the last."""
        self.last = value

    def begin_segment(self) -> None:
        """The process was started anew."""
        self.base, self.last = self.total, 0.0

    @property
    def total(self) -> float:
        """Over all segments."""
        return self.base + self.last


@dataclasses.dataclass(slots=True)
class _Role:
    """What is kept of one process of a role."""

    state: str = _SILENT
    pid: int = 0
    past_pids: list[int] = dataclasses.field(default_factory=list)
    restarts: int = 0
    said: float = -math.inf  # time of the newest record, by the role's own clock
    arrived: float = 0.0  # and by the monitor's
    version: int | None = None  # of its weights
    version_time: float = 0.0  # by the monitor's clock, when it changed
    weights_delay: float | None = None  # seconds
    counters: dict[str, Counter] = dataclasses.field(default_factory=dict)


class _Window:
    """Where some counts stood at the times of the last seconds."""

    def __init__(self) -> None:
        self._marks: collections.deque[tuple[float, Sequence[float]]] = collections.deque()

    def add(self, now: float, *counts: float) -> None:
        """Notes the counts at a time in seconds."""
        self._marks.append((now, counts))
        while len(self._marks) > 2 and self._marks[1][0] <= now - RATE_WINDOW:
            self._marks.popleft()

    @property
    def rates(self) -> Sequence[float]:
        """Of each count, a second; none before there are two marks. Never negative: a learner or a shard may go back to
        its checkpoint.
        """
        if len(self._marks) < 2 or self._marks[-1][0] <= self._marks[0][0]:
            return ()
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return [max(0.0, (now - then) / (last - first)) for then, now in zip(before, after, strict=True)]


# What a process counts from zero; all else is a gauge. A learner's steps and samples are none of these: a restarted one
# goes on from its checkpoint, so they say where it is, and the newest value holds though it is smaller.
_OF_ACTORS = ("environment_steps", "items_created", "items_skipped", "items_lost", "seconds_waiting")
ACTORS = ("actor", "accelerated_actor")  # the roles that act
COUNTERS = {
    "actor": _OF_ACTORS,
    "accelerated_actor": (*_OF_ACTORS, "seconds_environments", "seconds_device"),  # seconds of a thread, on average
    "learner": ("seconds_waiting", "batches_dropped", "priorities_dropped", "publications_replaced"),
}
_LEARNER_KNOWN = (*COUNTERS["learner"], "learner_steps", "version", "samples", "policy_lag", "state", "pid", "quiet_s")


class Aggregate:
    """The state of a run, built up record by record."""

    def __init__(self, roles: Sequence[str], shards: int, started: float) -> None:
        """`roles` are the names that are waited for, e.g. "actor-0"; `started` is in seconds since the epoch."""
        self.started = started
        self._roles: dict[str, _Role] = {name: _Role() for name in roles}
        self._shards = {index: ShardStatus(index=index, error="not asked yet") for index in range(shards)}
        self._returns: collections.deque[float] = collections.deque(maxlen=RETURN_WINDOW)
        self._new_returns: list[float] = []
        self._new_evaluations: list[Evaluation] = []
        self._return_history: collections.deque[float] = collections.deque(maxlen=HISTORY)
        self._evaluation_history: collections.deque[float] = collections.deque(maxlen=HISTORY)
        self._evaluation: Evaluation | None = None
        self._best: Evaluation | None = None
        self._episodes = 0
        self._learner_steps = 0
        self._policy_lag: float | None = None
        self._learner_metrics: dict[str, float | None] = {}
        # Environment steps, learner steps, and the seconds that the learner and all actors together waited.
        self._totals = _Window()
        self._progress_of: dict[str, _Window] = {}  # by role
        self._lost_with_shards = 0.0

    def add(self, records: Iterable[Record], now: float) -> None:
        """Takes records in, in the order of their own times; `now` is when they arrived, seconds since the epoch."""
        for record in sorted(records, key=lambda record: record.time):
            if self._is_news(record):
                self._update_role(record, now)
            match record.role:
                case "actor" | "accelerated_actor":
                    self._add_episodes(record.values.get("episodes") or ())
                case "evaluator" if _numbers(record.values, ("evaluation_return",)):
                    self._add_evaluation(record.values, now)

    def _is_news(self, record: Record) -> bool:
        """Whether a record is the newest of its role. Records travel through several shards, so an old one can arrive
        after a newer one: taken as a counter that went back, it would be counted twice.
        """
        role = self._roles.setdefault(f"{record.role}-{record.index}", _Role())
        pid = record.values.get("pid", role.pid)
        if pid != role.pid:
            return pid not in role.past_pids
        return record.time >= role.said

    def _update_role(self, record: Record, now: float) -> None:
        role, values = self._roles[f"{record.role}-{record.index}"], record.values
        role.said, role.arrived = record.time, now
        role.state = str(values.get("state", role.state if role.state != _SILENT else "running"))
        version = values.get("version")
        if isinstance(version, int) and version != role.version:
            role.version, role.version_time = version, now
        role.weights_delay = _numbers(values, ("weights_delay_s",)).get("weights_delay_s", role.weights_delay)
        self._count(role, int(values.get("pid", role.pid)), _numbers(values, COUNTERS.get(record.role, ())))
        if record.role == "learner":
            self._add_learner(values)
        if record.role == "replay":
            self._fill_in_shard(record.index, values)

    @staticmethod
    def _count(role: _Role, pid: int, counts: Mapping[str, float]) -> None:
        """Takes a process's counters in. Another pid, or a counter that went back, is a process that began anew; in
        containers every process has the same pid.
        """
        anew = role.pid not in (0, pid)
        if anew or any(value < role.counters[name].last for name, value in counts.items() if name in role.counters):
            role.restarts += 1
            for counter in role.counters.values():
                counter.begin_segment()
        if anew:
            role.past_pids.append(role.pid)
        role.pid = pid
        for name, value in counts.items():
            role.counters.setdefault(name, Counter()).update(value)

    def _add_learner(self, values: Mapping[str, Any]) -> None:
        position = _numbers(values, ("learner_steps", "version"))
        if position:
            self._learner_steps = int(max(position.values()))
        self._policy_lag = _numbers(values, ("policy_lag",)).get("policy_lag", self._policy_lag)
        for name, value in values.items():
            if name not in _LEARNER_KNOWN and isinstance(value, int | float):
                self._learner_metrics[name] = float(value)  # a nan too: it has to be seen

    def _add_episodes(self, episodes: Iterable[Sequence[float]]) -> None:
        returns = [float(episode[0]) for episode in episodes]
        self._episodes += len(returns)
        self._returns.extend(returns)
        self._new_returns.extend(returns)

    def _add_evaluation(self, values: Mapping[str, Any], now: float) -> None:
        returns = values.get("evaluation_returns") or ()
        evaluation = Evaluation(
            elapsed=now - self.started,
            environment_steps=self.environment_steps,
            learner_steps=self._learner_steps,
            version=int(values.get("version", 0)),
            mean=float(values["evaluation_return"]),
            episodes=len(returns) or int(values.get("episodes", 1)),
        )
        self._evaluation = evaluation
        if self._best is None or evaluation.mean > self._best.mean:
            self._best = evaluation
        self._evaluation_history.append(evaluation.mean)
        self._new_evaluations.append(evaluation)

    def _fill_in_shard(self, index: int, values: Mapping[str, Any]) -> None:
        shard = self._shards.get(index)
        if shard is not None and shard.error:
            known = {name: values[name] for name in SHARD_FIELDS if name in values}
            self._shards[index] = dataclasses.replace(shard, **known)

    def set_shard(self, shard: ShardStatus, now: float) -> None:
        """What a shard answered. One with an error keeps the numbers it had; an answer is a word of its role too."""
        before = self._shards.get(shard.index, shard)
        if shard.error:
            shard = dataclasses.replace(before, error=shard.error)
        elif shard.inserts < before.inserts:  # it began anew, at its newest checkpoint or empty
            self._lost_with_shards += min(before.inserts - shard.inserts, before.size)
        self._shards[shard.index] = shard
        role = self._roles.setdefault(f"replay-{shard.index}", _Role())
        if not shard.error:
            role.state, role.arrived = "running", now
        elif role.arrived:
            role.state = "doesn't answer"

    def total(self, role: str, counter: str) -> float:
        """A counter, over all processes of a role and all their restarts."""
        return sum(
            state.counters[counter].total
            for name, state in self._roles.items()
            if name.rpartition("-")[0] == role and counter in state.counters
        )

    @property
    def environment_steps(self) -> int:
        """Over all actors."""
        return int(self._of_actors("environment_steps"))

    def _of_actors(self, counter: str) -> float:
        return sum(self.total(role, counter) for role in ACTORS)

    @property
    def silent_roles(self) -> list[str]:
        """Names of the roles that have said nothing yet."""
        return [name for name, role in self._roles.items() if not role.arrived]

    def take_news(self) -> tuple[list[float], list[Evaluation]]:
        """Returns of the training episodes, and the evaluations, that came since this was last called."""
        news = self._new_returns, self._new_evaluations
        self._new_returns, self._new_evaluations = [], []
        return news

    def mark(self, now: float) -> None:
        """Notes where the counters stand, for rates; called about once a second."""
        waits = self.total("learner", "seconds_waiting"), self._of_actors("seconds_waiting")
        self._totals.add(now, self.environment_steps, self._learner_steps, *waits)
        for name, role in self._roles.items():
            if (count := self._progress(name, role)) is not None:
                self._progress_of.setdefault(name, _Window()).add(now, count)
        if self._returns:
            self._return_history.append(sum(self._returns) / len(self._returns))

    def _progress(self, name: str, role: _Role) -> float | None:
        """What a role's rate is of; None for one that has none."""
        kind, _, index = name.rpartition("-")
        if kind == "learner":
            return float(self._learner_steps)
        if kind == "replay":
            return float(self._shards[int(index)].inserts) if int(index) in self._shards else None
        return role.counters["environment_steps"].total if "environment_steps" in role.counters else None

    def state(self, now: float) -> RunState:
        """The run as it is at `now`, seconds since the epoch."""
        environment_rate, learner_rate, learner_waiting, actors_waiting = self._totals.rates or (0.0,) * 4
        actors = sum(name.rpartition("-")[0] in ACTORS and role.arrived > 0 for name, role in self._roles.items())
        learners = sum(name.startswith("learner-") and role.arrived > 0 for name, role in self._roles.items())
        delays = [role.weights_delay for role in self._roles.values() if role.weights_delay is not None]
        return RunState(
            elapsed=now - self.started,
            environment_steps=self.environment_steps,
            environment_steps_per_second=environment_rate,
            learner_steps=self._learner_steps,
            learner_steps_per_second=learner_rate,
            episodes=self._episodes,
            training_return=sum(self._returns) / len(self._returns) if self._returns else None,
            training_returns=tuple(self._return_history),
            evaluation=self._evaluation,
            best_evaluation=self._best,
            evaluation_returns=tuple(self._evaluation_history),
            policy_lag=self._policy_lag,
            weights_delay=statistics.median(delays) if delays else None,
            learner_waiting=min(1.0, learner_waiting / learners) if learners else None,
            actors_waiting=min(1.0, actors_waiting / actors) if actors else None,
            shards=tuple(self._shards[index] for index in sorted(self._shards)),
            roles=tuple(self._role_status(name, role) for name, role in self._roles.items()),
            learner_metrics=dict(self._learner_metrics),
            counts={
                **{f"{role}.{name}": self.total(role, name) for role, names in COUNTERS.items() for name in names},
                "replay.items_lost": self._lost_with_shards,
            },
        )

    def _role_status(self, name: str, role: _Role) -> RoleRecord:
        rates = self._progress_of[name].rates if name in self._progress_of else ()
        return RoleRecord(
            name=name,
            state=role.state,
            pid=role.pid,
            time=role.arrived,
            restarts=role.restarts,
            version=role.version,
            version_time=role.version_time,
            rate=rates[0] if rates else None,
        )

    def save(self) -> dict[str, Any]:
        """What restore() goes on from, as plain JSON values."""
        return {
            "roles": {name: dataclasses.asdict(role) for name, role in self._roles.items() if role.arrived},
            "returns": list(self._returns),
        }

    def restore(self, state: RunState, saved: Mapping[str, Any]) -> None:
        """Goes on from an earlier monitor's last state and save(). Since when a role has had its weights is not known:
        much may have happened meanwhile.
        """
        for name, role in saved["roles"].items():
            counters = {key: Counter(**counter) for key, counter in role["counters"].items()}
            self._roles[name] = _Role(**{**role, "counters": counters, "version": None})
        self._returns.extend(saved["returns"])
        self._return_history.extend(state.training_returns)
        self._evaluation, self._best = state.evaluation, state.best_evaluation
        self._evaluation_history.extend(state.evaluation_returns)
        self._episodes, self._learner_steps = state.episodes, state.learner_steps
        self._policy_lag, self._learner_metrics = state.policy_lag, dict(state.learner_metrics)
        self._shards.update({shard.index: shard for shard in state.shards if shard.index in self._shards})
        self._lost_with_shards = state.counts.get("replay.items_lost", 0.0)


def _numbers(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    """Those of the named values that are there and finite."""
    found = {name: values[name] for name in names if isinstance(values.get(name), int | float)}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}
