"""Builds what every role needs of an experiment: its agent, its environment's spec, and the replay between them."""

import dataclasses
from typing import Any

import jax

from agents.agent import Agent, Params
from agents.networks import leaf_specs
from agents.registry import resolve
from agents.signatures import extras_spec, state_spec
from configs.experiment import Experiment
from launch.environments.factory import environment_spec
from replay.layout import Layout, make_layout
from replay.spec import EnvironmentSpec
from replay.tables import ShardPlan, plan_shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What an experiment is made of; the same in every process."""

    agent: Agent
    environment: EnvironmentSpec
    layout: Layout
    plan: ShardPlan

    def params_structure(self) -> Params:
        """Shapes and dtypes of the weights that actors get."""
        return jax.eval_shape(lambda key: self.agent.actor_params(self.agent.init_learner(key)), key_of(0))


def assemble(experiment: Experiment) -> Parts:
    """Builds the parts; computes nothing and starts nothing.

    Raises:
        ValueError: where agent, environment and replay don't fit; the message names the field.
    """
    environment = environment_spec(experiment.environment)
    _check_observation(experiment, environment)
    agent: Agent = resolve(experiment.agent)(experiment.agent_config, environment)
    layout = make_layout(agent.replay, environment, extras_spec(agent, environment), state_spec(agent, environment))
    learner = experiment.learner
    in_flight = learner.samples_in_flight * learner.processes  # each has a dataset of its own for each shard
    plan = plan_shard(agent.replay, experiment.topology.shards, learner.batch_size, in_flight)
    return Parts(agent=agent, environment=environment, layout=layout, plan=plan)


def _check_observation(experiment: Experiment, environment: EnvironmentSpec) -> None:
    for name, spec in leaf_specs(environment.observation).items():
        if 0 in spec.shape:
            named = f" {name!r}" if name else ""
            raise ValueError(
                f"environment.name={experiment.environment.name!r} shows an observation{named} of shape {spec.shape}, "
                f"which holds nothing. Change environment.options={experiment.environment.options}."
            )


def key_of(*numbers: int) -> Any:
    """A raw PRNG key that differs for every sequence of numbers, e.g. (seed, role, index)."""
    key = jax.random.PRNGKey(numbers[0])
    for number in numbers[1:]:
        key = jax.random.fold_in(key, number)
    return key
