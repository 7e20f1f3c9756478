"""When a role that failed is started again, and when that is given up. Pure."""

import dataclasses

from configs.experiment import SupervisionConfig

FIRST_PAUSE = 0.5  # seconds before the first restart; doubles with each further one
LONGEST_PAUSE = 10.0  # seconds


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """How often a role may be started again."""

    most: int = 0  # restarts of one role within `window`; with one more failure the run ends
    window: float = 600.0  # seconds
    final: tuple[str, ...] = ()  # roles that are never started again


NEVER = RestartPolicy()


def policy_of(config: SupervisionConfig) -> RestartPolicy:
    """What an experiment says of it."""
    return RestartPolicy(most=config.restarts, window=config.window, final=config.final)


class Restarts:
    """The failures of a program's roles, and what follows from them."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._failures: dict[str, list[float]] = {}  # by role name, their times within the window
        self.counts: dict[str, int] = {}  # restarts that were granted, by role name

    def failed(self, name: str, now: float) -> float | None:
        """Notes a failure at `now` (seconds). The pause before a restart, in seconds; None: it has failed too often, or
        is of a role that isn't started again.
        """
        recent = [time for time in self._failures.get(name, ()) if now - time < self._policy.window]
        self._failures[name] = [*recent, now]
        if len(recent) >= self._policy.most or name.partition("-")[0] in self._policy.final:
            return None
        self.counts[name] = self.counts.get(name, 0) + 1
        return min(FIRST_PAUSE * 2.0 ** len(recent), LONGEST_PAUSE)
