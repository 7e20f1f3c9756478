"""When a run is over, and why. Pure."""

import math
from collections.abc import Iterable

from configs.experiment import RunConfig
from launch.run_state import Evaluation, Limits, RunState


def limits_of(run: RunConfig) -> Limits:
    """The limits of a run's configuration."""
    return Limits(
        environment_steps=run.environment_steps,
        learner_steps=run.learner_steps,
        target_return=run.target_return if math.isfinite(run.target_return) else None,
        seconds=run.seconds,
    )


def end_reason(state: RunState, limits: Limits, evaluations: Iterable[Evaluation], episodes: int) -> str:
    """Which limit is reached, in words; "" while none is. An evaluation counts if it has at least `episodes`."""
    for evaluation in evaluations:
        enough = evaluation.episodes >= episodes
        if limits.target_return is not None and enough and evaluation.mean >= limits.target_return:
            return (
                f"target return {limits.target_return:g} reached: {evaluation.mean:.1f} over {evaluation.episodes} "
                f"episodes at {evaluation.environment_steps:,} environment steps"
            )
    if limits.environment_steps and state.environment_steps >= limits.environment_steps:
        return f"{limits.environment_steps:,} environment steps reached ({state.environment_steps:,} done)"
    if limits.learner_steps and state.learner_steps >= limits.learner_steps:
        return f"{limits.learner_steps:,} learner steps reached ({state.learner_steps:,} done)"
    if limits.seconds and state.elapsed >= limits.seconds:
        return f"{limits.seconds:g} seconds are over"
    return ""
