"""When a run is over, and why. Pure."""

import math

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


class TargetWatch:
    """Whether a target return is held: one evaluation may be luck, for a network that has hardly learned balances a
    pole now and then; so many in a row, each with newer weights, are not.
    """

    def __init__(self, target: float | None, needed: int, episodes: int) -> None:
        """`needed` evaluations in a row, each of at least `episodes` episodes."""
        self._target, self._needed, self._episodes = target, needed, episodes
        self._held: list[Evaluation] = []

    def add(self, evaluation: Evaluation) -> None:
        """Takes an evaluation in the order of their ends; the same weights again count once."""
        if self._target is None or evaluation.episodes < self._episodes:
            return
        if evaluation.mean < self._target:
            self._held.clear()
        elif not self._held or evaluation.version != self._held[-1].version:
            self._held.append(evaluation)

    @property
    def reason(self) -> str:
        """Why the run is over, in words; "" while the target isn't held."""
        if len(self._held) < self._needed:
            return ""
        lowest, last = min(self._held, key=lambda held: held.mean), self._held[-1]
        row = f"{len(self._held)} evaluations in a row" if self._needed > 1 else "an evaluation"
        return (
            f"target return {self._target:g} reached by {row}: at least "
            f"{lowest.mean:.1f} over {lowest.episodes} episodes each, at {last.environment_steps:,} environment steps"
        )


def end_reason(state: RunState, limits: Limits) -> str:
    """Which limit of steps or time is reached, in words; "" while none is."""
    if limits.environment_steps and state.environment_steps >= limits.environment_steps:
        return f"{limits.environment_steps:,} environment steps reached ({state.environment_steps:,} done)"
    if limits.learner_steps and state.learner_steps >= limits.learner_steps:
        return f"{limits.learner_steps:,} learner steps reached ({state.learner_steps:,} done)"
    if limits.seconds and state.elapsed >= limits.seconds:
        return f"{limits.seconds:g} seconds are over"
    return ""
