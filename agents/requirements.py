"""What several algorithms ask of their environment and their replay, refused in the same words."""

from replay.spec import DiscreteAction, EnvironmentSpec, ReplaySpec


def discrete_actions(agent: str, environment: EnvironmentSpec) -> int:
    """How many actions there are to choose from.

    Raises:
        ValueError: the actions aren't discrete.
    """
    if not isinstance(environment.action, DiscreteAction):
        raise ValueError(
            f"agent={agent} chooses among discrete actions, and this environment takes {environment.action}. "
            "Set another environment.name, or another agent."
        )
    return environment.action.count


def require_rows_once(replay: ReplaySpec, why: str) -> None:
    """Raises ValueError, with `why`, unless replay is a queue that gives each row to train on exactly once."""
    if not replay.queue or replay.n_step != 1 or replay.burn_in or replay.period != replay.trace:
        raise ValueError(
            f"agent_config.replay.queue={replay.queue}, n_step={replay.n_step}, burn_in={replay.burn_in}, "
            f"period={replay.period}, trace={replay.trace}: {why}, with one more to bootstrap from. "
            "Set agent_config.replay.queue=True agent_config.replay.n_step=1 agent_config.replay.burn_in=0 "
            f"agent_config.replay.period={replay.trace}."
        )
