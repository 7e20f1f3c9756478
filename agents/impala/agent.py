"""IMPALA as an Agent record."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.agent import ActorOutput, Agent, Fleet, Key, Params, TimeStep, Update
from agents.bounds import check_numbers
from agents.impala.config import ImpalaConfig
from agents.impala.loss import ImpalaLoss, impala_loss
from agents.networks import PolicyValue, PolicyValueHead, make_torso, over_time
from agents.optimizers import make_optimizer
from agents.requirements import discrete_actions, require_rows_once
from agents.sequences import discounts_of, rewards_of, transitions_of
from agents.signatures import example_timestep
from replay.spec import EnvironmentSpec
from replay.steps import Array, Batch, Steps, Tree

PolicyValueNetwork = Callable[[Params, Tree], PolicyValue]  # of observation [B, *obs]


class ActorState(NamedTuple):
    """What an actor carries."""

    key: Key


class LearnerState(NamedTuple):
    """What the learner carries."""

    params: Params
    optimizer: optax.OptState
    step: Array  # int32, updates done


def make_agent(config: ImpalaConfig, environment: EnvironmentSpec) -> Agent:
    """Builds the agent.

    Raises:
        ValueError: actions that aren't discrete, a replay that gives a row more than once, or a bound below 1.
    """
    actions = discrete_actions("impala", environment)
    _check(config)
    torso = make_torso(config.network, config.hidden_sizes, environment)
    network = PolicyValueHead(torso, actions)
    optimizer = make_optimizer(
        config.optimizer,
        config.learning_rate,
        config.epsilon,
        config.max_gradient_norm,
        config.rmsprop_decay,
        config.annealing_steps,
    )

    def init_actor(key: Key, fleet: Fleet) -> ActorState:
        del fleet  # all actors follow the same policy
        return ActorState(key)

    def act(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        key, sample_key = jax.random.split(state.key)
        logits = network.apply(params, timestep.observation).logits
        action = jax.random.categorical(sample_key, logits).astype(jnp.int32)
        return ActorOutput(action, {"logits": logits}), ActorState(key)

    def act_greedily(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        logits = network.apply(params, timestep.observation).logits
        return ActorOutput(jnp.argmax(logits, axis=1).astype(jnp.int32), {"logits": logits}), state

    def init_learner(key: Key) -> LearnerState:
        params = network.init(key, example_timestep(environment, 1).observation)
        return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    return Agent(
        replay=config.replay,
        init_actor=init_actor,
        act=act,
        act_greedily=act_greedily,
        init_learner=init_learner,
        update=functools.partial(_update, config, network.apply, optimizer),
        actor_params=lambda state: state.params,
    )


def _check(config: ImpalaConfig) -> None:
    check_numbers(config)
    require_rows_once(config.replay, "IMPALA trains on each row once")


def _update(
    config: ImpalaConfig,
    network: PolicyValueNetwork,
    optimizer: optax.GradientTransformation,
    state: LearnerState,
    batch: Batch,
) -> tuple[LearnerState, Update]:
    loss = functools.partial(batch_loss, network=network, config=config)
    gradient, parts = jax.grad(loss, has_aux=True)(state.params, batch.steps)
    change, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    metrics = {**parts._asdict(), "gradient_norm": optax.tree.norm(gradient)}
    params = optax.apply_updates(state.params, change)
    return LearnerState(params, optimizer_state, state.step + 1), Update(metrics, None)


def batch_loss(
    params: Params, steps: Steps, *, network: PolicyValueNetwork, config: ImpalaConfig
) -> tuple[Array, ImpalaLoss]:
    """The loss of the rows [L, B] of a batch, and its parts."""
    outputs = over_time(functools.partial(network, params), steps.observation)
    rows = transitions_of(steps)
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
