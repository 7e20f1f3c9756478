"""IMPALA as an Agent record."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.agent import ActorOutput, Agent, Fleet, Key, Params, TimeStep, Update
from agents.impala.config import ImpalaConfig
from agents.impala.loss import impala_loss
from agents.networks import PolicyValue, PolicyValueHead, make_torso, over_time, prepare
from agents.optimizers import make_optimizer
from agents.sequences import discounts_of, rewards_of
from agents.signatures import example_timestep
from replay.spec import DiscreteAction, EnvironmentSpec
from replay.steps import Batch, Tree


class ActorState(NamedTuple):
    """What an actor carries."""

    key: Key


class LearnerState(NamedTuple):
    """What the learner carries."""

    params: Params
    optimizer: optax.OptState


def make_agent(config: ImpalaConfig, environment: EnvironmentSpec) -> Agent:
    """Builds the agent.

    Raises:
        ValueError: actions that aren't discrete, or a replay that gives an unroll more than once.
    """
    if not isinstance(environment.action, DiscreteAction):
        raise ValueError(
            f"agent=impala chooses among discrete actions, and this environment takes {environment.action}."
        )
    if not config.replay.queue:
        raise ValueError(
            "agent_config.replay.queue=False: IMPALA consumes each unroll once. Set agent_config.replay.queue=True."
        )
    network = PolicyValueHead(make_torso(config.network, config.hidden_sizes, environment), environment.action.count)
    optimizer = make_optimizer(config.optimizer, config.learning_rate, config.epsilon, config.max_gradient_norm)

    def apply(params: Params, observation: Tree) -> PolicyValue:
        output: PolicyValue = network.apply(params, prepare(observation, environment))
        return output

    def init_actor(key: Key, fleet: Fleet) -> ActorState:
        return ActorState(key)

    def act(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        key, sample_key = jax.random.split(state.key)
        logits = apply(params, timestep.observation).logits
        action = jax.random.categorical(sample_key, logits).astype(jnp.int32)
        return ActorOutput(action, {"logits": logits}), ActorState(key)

    def act_greedily(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        logits = apply(params, timestep.observation).logits
        return ActorOutput(jnp.argmax(logits, axis=1).astype(jnp.int32), {"logits": logits}), state

    def init_learner(key: Key) -> LearnerState:
        example = prepare(example_timestep(environment, 1).observation, environment)
        params = network.init(key, example)
        return LearnerState(params, optimizer.init(params))

    def loss(params: Params, batch: Batch) -> tuple[Any, Any]:
        outputs = over_time(lambda observation: apply(params, observation), batch.steps.observation)
        rows = jax.tree.map(lambda leaf: leaf[:-1], batch.steps)
        parts = impala_loss(
            outputs.logits[:-1],
            outputs.value,
            rows.extras["logits"],
            rows.action,
            rewards_of(rows, config.reward_clip),
            discounts_of(rows, config.discount),
            rows.valid,
            clip_rho=config.clip_rho,
            baseline_cost=config.baseline_cost,
            entropy_cost=config.entropy_cost,
        )
        return parts.total, parts

    def update(state: LearnerState, batch: Batch) -> tuple[LearnerState, Update]:
        gradient, parts = jax.grad(loss, has_aux=True)(state.params, batch)
        change, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        metrics = {**parts._asdict(), "gradient_norm": optax.global_norm(gradient)}
        return LearnerState(optax.apply_updates(state.params, change), optimizer_state), Update(metrics, None)

    return Agent(
        replay=config.replay,
        init_actor=init_actor,
        act=act,
        act_greedily=act_greedily,
        init_learner=init_learner,
        update=update,
        actor_params=lambda state: state.params,
    )
