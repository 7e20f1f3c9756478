"""The state of a run as plain numbers: what the monitor writes to status.json and everything else reads from it."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RETURN_WINDOW = 100  # episodes in the recent training return
HISTORY = 60  # points of the small histories


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardStatus:
    """What is known of one replay shard's trajectories. `blocked` says who waits at its limiter."""

    index: int
    size: int = 0  # items
    max_size: int = 0  # items
    inserts: int = 0
    samples: int = 0
    blocked: str = ""  # "inserts", "samples" or ""
    error: str = ""  # why it could not be asked


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RoleRecord:
    """The last word of one role's process."""

    name: str  # e.g. "actor-3"
    state: str = "no record yet"
    pid: int = 0
    time: float = 0.0  # seconds since the epoch when its last record arrived; 0: none has
    restarts: int = 0
    version: int | None = None  # learner step of the weights that it acts with, evaluates, or has made
    version_time: float = 0.0  # seconds since the epoch when that last changed
    rate: float | None = None  # a second: an actor's environment steps, a learner's steps, a shard's inserted items


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """One evaluation of the greedy policy, and where the run was when it arrived."""

    elapsed: float  # seconds
    environment_steps: int
    learner_steps: int
    version: int  # learner step of the weights
    mean: float
    episodes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """Everything that a display of the run needs, as plain numbers."""

    elapsed: float = 0.0  # seconds
    environment_steps: int = 0
    environment_steps_per_second: float = 0.0
    learner_steps: int = 0
    learner_steps_per_second: float = 0.0
    episodes: int = 0
    training_return: float | None = None  # mean of the last RETURN_WINDOW episodes
    training_returns: tuple[float, ...] = ()  # the mean at the last HISTORY times
    evaluation: Evaluation | None = None  # the newest one
    best_evaluation: Evaluation | None = None
    evaluation_returns: tuple[float, ...] = ()  # of the last HISTORY evaluations
    policy_lag: float | None = None  # learner steps
    weights_delay: float | None = None  # seconds from a learner's publication to an actor: the median over actors
    learner_waiting: float | None = None  # share of its time, 0..1, that the learner waits for data
    actors_waiting: float | None = None  # share of their time that the actors wait for replay
    shards: tuple[ShardStatus, ...] = ()
    roles: tuple[RoleRecord, ...] = ()
    learner_metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)  # as last told; None: not finite
    counts: dict[str, float] = dataclasses.field(default_factory=dict)  # role.counter, over all of a role and restarts


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Where the run ends; 0 or None: no such limit."""

    environment_steps: int = 0
    learner_steps: int = 0
    target_return: float | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """A run's state with what is said about it: the content of status.json."""

    preset: str
    started: float  # seconds since the epoch
    time: float  # seconds since the epoch, of this report
    state: RunState
    limits: Limits = Limits()
    waits: tuple[str, ...] = ()  # who waits for whom, in words
    advice: tuple[str, ...] = ()  # when nothing moves: what blocks it, and what to change
    ended: bool = False
    reason: str = ""  # why it ended
    saved: dict[str, Any] = dataclasses.field(default_factory=dict)  # what a restarted monitor goes on from


def read_status(path: Path) -> RunStatus | None:
    """Reads a status.json; None where there is none yet.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        values = json.loads(text)
        return RunStatus(
            **{
                **values,
                "state": _state_of(values["state"]),
                "limits": Limits(**values["limits"]),
                "waits": tuple(values["waits"]),
                "advice": tuple(values["advice"]),
            }
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} isn't a status of this version: {error}. Move it away, or read it with the code that wrote it."
        ) from error


def _state_of(values: Mapping[str, Any]) -> RunState:
    def evaluation(name: str) -> Evaluation | None:
        return None if values[name] is None else Evaluation(**values[name])

    return RunState(
        **{
            **values,
            "training_returns": tuple(values["training_returns"]),
            "evaluation_returns": tuple(values["evaluation_returns"]),
            "evaluation": evaluation("evaluation"),
            "best_evaluation": evaluation("best_evaluation"),
            "shards": tuple(ShardStatus(**shard) for shard in values["shards"]),
            "roles": tuple(RoleRecord(**role) for role in values["roles"]),
        }
    )
