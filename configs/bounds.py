"""What values the numbers of an experiment may have, each by itself; how they fit together the parts check."""

import math
from collections.abc import Mapping

from agents.bounds import COUNT, NOT_NEGATIVE, POSITIVE, Bound
from configs.experiment import Experiment
from configs.fields import list_fields

BOUNDS: Mapping[str, Bound] = {
    "environment.per_actor": COUNT,
    "environment.threads": COUNT,
    "topology.shards": COUNT,
    "topology.actors": NOT_NEGATIVE,
    "topology.accelerated_actors": NOT_NEGATIVE,
    "topology.evaluators": Bound(0, 1),
    "topology.actors_per_pod": COUNT,
    "actor.items_in_flight": COUNT,
    "actor.items_per_shard": COUNT,
    "actor.fetch_period": POSITIVE,
    "actor.report_period": POSITIVE,
    "accelerated.threads": COUNT,
    "accelerated.environments": COUNT,
    "accelerated.batch_size": COUNT,
    "accelerated.environment_threads": COUNT,
    "shard.checkpoint_period": NOT_NEGATIVE,
    "shard.checkpoints_kept": COUNT,
    "learner.batch_size": COUNT,
    "learner.processes": COUNT,
    "learner.updates_per_call": COUNT,
    "learner.samples_in_flight": COUNT,
    "learner.prefetch": COUNT,
    "learner.publish_period": COUNT,
    "learner.max_policy_lag": NOT_NEGATIVE,
    "learner.checkpoint_period": NOT_NEGATIVE,
    "learner.checkpoints_kept": COUNT,
    "learner.threads": COUNT,
    "evaluator.environments": COUNT,
    "evaluator.episodes": COUNT,
    "evaluator.pause": NOT_NEGATIVE,
    "supervision.restarts": NOT_NEGATIVE,
    "supervision.window": POSITIVE,
    "supervision.silence": NOT_NEGATIVE,
    "run.environment_steps": NOT_NEGATIVE,
    "run.learner_steps": NOT_NEGATIVE,
    "run.target_evaluations": COUNT,
    "run.seconds": NOT_NEGATIVE,
    "run.seed": Bound(0, 2**31 - 1),
}


def check_bounds(experiment: Experiment) -> None:
    """Refuses a number that can't be.

    Raises:
        ValueError: for the first one; the message names the field, the value, what it is, and what to set.
    """
    for field in list_fields(experiment):
        if field.path in BOUNDS:
            BOUNDS[field.path].check(field.path, field.value, field.comment)
    if experiment.topology.actors + experiment.topology.accelerated_actors < 1:
        raise ValueError(
            "topology.actors=0 and topology.accelerated_actors=0: nobody would act. Set one of them to 1 or more."
        )
    _check_lag(experiment)
    if math.isfinite(experiment.run.target_return) and not experiment.topology.evaluators:
        raise ValueError(
            f"run.target_return={experiment.run.target_return} can't be reached without an evaluator. "
            "Set topology.evaluators=1, or end the run by run.environment_steps."
        )


def _check_lag(experiment: Experiment) -> None:
    learner, queue = experiment.learner, experiment.agent_config.replay.queue
    if learner.max_policy_lag and not queue:
        raise ValueError(
            f"learner.max_policy_lag={learner.max_policy_lag} is for queues: agent={experiment.agent} draws old "
            "experience on purpose, and it stays in its tables. Set learner.max_policy_lag=0."
        )
    if 0 < learner.max_policy_lag < learner.publish_period:
        raise ValueError(
            f"learner.max_policy_lag={learner.max_policy_lag} is below learner.publish_period="
            f"{learner.publish_period}: the newest weights that actors can have may be older, and everything would be "
            f"dropped. Set learner.max_policy_lag={learner.publish_period} or more."
        )
