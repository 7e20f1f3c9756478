"""PPO as an Agent record."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.agent import ActorOutput, Agent, Fleet, Key, Params, TimeStep, Update
from agents.bounds import check_numbers
from agents.networks import make_torso, over_time
from agents.optimizers import make_optimizer
from agents.policies import as_stored, distribution, sample_with_log_probability
from agents.ppo.config import PpoConfig
from agents.ppo.loss import PpoLoss, advantages, normalize, ppo_loss
from agents.ppo.network import ActorCritic, Outputs
from agents.requirements import require_rows_once
from agents.sequences import discounts_of, rewards_of, take_rows, transitions_of
from agents.signatures import example_timestep
from replay.spec import EnvironmentSpec
from replay.steps import Array, Batch, Steps, Tree

Network = Callable[[Params, Tree], Outputs]  # of observation [N, *obs]


class ActorState(NamedTuple):
    """What an actor carries."""

    key: Key


class LearnerState(NamedTuple):
    """What the learner carries."""

    params: Params
    optimizer: optax.OptState
    key: Key  # of the shuffles


class Experience(NamedTuple):
    """What an update learns from: rows [T, B, ...], fixed before its first step."""

    observation: Tree
    action: Array
    log_probability: Array  # of the action under the policy that took it
    advantage: Array
    value: Array
    target: Array  # of the value
    valid: Array


def make_agent(config: PpoConfig, environment: EnvironmentSpec) -> Agent:
    """Builds the agent, for discrete or continuous actions.

    Raises:
        ValueError: a replay of another kind than this algorithm's, or one that doesn't split into the minibatches.
    """
    _check(config)

    torso = functools.partial(make_torso, config.network, config.hidden_sizes, environment)
    network = ActorCritic(torso(), None if config.shared_torso else torso(), environment.action)
    optimizer = make_optimizer(
        config.optimizer, config.learning_rate, config.epsilon, config.max_gradient_norm, config.rmsprop_decay
    )

    def init_actor(key: Key, fleet: Fleet) -> ActorState:
        del fleet  # all actors follow the same policy
        return ActorState(key)

    def act(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        key, sample_key = jax.random.split(state.key)
        policy = network.apply(params, timestep.observation).policy
        action, log_probability = sample_with_log_probability(sample_key, policy)
        return ActorOutput(action, {"log_probability": log_probability}), ActorState(key)

    def act_greedily(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        policy = distribution(network.apply(params, timestep.observation).policy)
        action = policy.mode()
        return ActorOutput(as_stored(action), {"log_probability": policy.log_prob(action)}), state

    def init_learner(key: Key) -> LearnerState:
        init_key, shuffle_key = jax.random.split(key)
        params = network.init(init_key, example_timestep(environment, 1).observation)
        return LearnerState(params, optimizer.init(params), shuffle_key)

    return Agent(
        replay=config.replay,
        init_actor=init_actor,
        act=act,
        act_greedily=act_greedily,
        init_learner=init_learner,
        update=functools.partial(_update, config, network.apply, optimizer),
        actor_params=lambda state: state.params,
    )


def _check(config: PpoConfig) -> None:
    replay = config.replay
    check_numbers(config)
    require_rows_once(replay, "PPO trains on the rows of each sequence in one update")
    if replay.trace % config.minibatches:
        nearest_multiple = max(replay.trace // config.minibatches, 1) * config.minibatches
        raise ValueError(
            f"agent_config.minibatches={config.minibatches} doesn't divide agent_config.replay.trace={replay.trace}: "
            "each minibatch takes an equal share of the rows of every sequence. Set agent_config.replay.trace and "
            f"agent_config.replay.period to a multiple of it, e.g. {nearest_multiple}."
        )


def _update(
    config: PpoConfig, network: Network, optimizer: optax.GradientTransformation, state: LearnerState, batch: Batch
) -> tuple[LearnerState, Update]:
    key, shuffle_key = jax.random.split(state.key)
    experience = experience_of(state.params, batch.steps, network=network, config=config)
    loss = jax.grad(functools.partial(minibatch_loss, network=network, config=config), has_aux=True)

    def step(carry: tuple[Params, optax.OptState], rows: Array) -> tuple[tuple[Params, optax.OptState], PpoLoss]:
        params, optimizer_state = carry
        gradient, parts = loss(params, take_rows(experience, rows))
        change, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return (optax.apply_updates(params, change), optimizer_state), parts

    rows = shuffled_rows(shuffle_key, config, batch_size=batch.steps.reward.shape[1])
    (params, optimizer_state), parts = jax.lax.scan(step, (state.params, state.optimizer), rows)
    metrics = {name: jnp.mean(values) for name, values in parts._asdict().items()}
    return LearnerState(params, optimizer_state, key), Update(metrics, None)


def shuffled_rows(key: Key, config: PpoConfig, batch_size: int) -> Array:
    """The rows of each step of an update: [epochs * minibatches, trace / minibatches, B] int32.

    Every sequence is shuffled for itself, so that each minibatch has as many rows of one as of another. On a learner of
    several devices no row has to leave the one that its sequence lies on.
    """
    trace = config.replay.trace
    order = jax.random.uniform(key, (config.epochs, trace, batch_size)).argsort(axis=1)
    return order.reshape(config.epochs * config.minibatches, trace // config.minibatches, batch_size)


def experience_of(params: Params, steps: Steps, *, network: Network, config: PpoConfig) -> Experience:
    """Advantages and targets of the rows [L, B] of a batch, by the values of the learner's present weights."""
    values = over_time(functools.partial(network, params), steps.observation).value
    rows = transitions_of(steps)
    advantage = advantages(
        config.reward_scale * rewards_of(rows, config.reward_clip),
        discounts_of(rows, config.discount),
        rows.valid,
        values,
        trace_decay=config.trace_decay,
    )
    return Experience(
        observation=rows.observation,
        action=rows.action,
        log_probability=rows.extras["log_probability"],
        advantage=advantage,
        value=values[:-1],
        target=advantage + values[:-1],
        valid=rows.valid,
    )


def minibatch_loss(params: Params, rows: Experience, *, network: Network, config: PpoConfig) -> tuple[Array, PpoLoss]:
    """The loss of some rows [N, B], and its parts."""
    outputs = over_time(functools.partial(network, params), rows.observation)
    policy = distribution(outputs.policy)
    parts = ppo_loss(
        policy.log_prob(rows.action),
        rows.log_probability,
        policy.entropy(),
        normalize(rows.advantage, rows.valid) if config.normalize_advantage else rows.advantage,
        outputs.value,
        rows.value,
        rows.target,
        rows.valid,
        clip=config.clip,
        value_clip=config.value_clip,
        value_cost=config.value_cost,
        entropy_cost=config.entropy_cost,
    )
    return parts.total, parts
