"""Ape-X DQN as an Agent record."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.agent import ActorOutput, Agent, Fleet, Key, Params, TimeStep, Update
from agents.apex_dqn.config import ApexConfig
from agents.apex_dqn.loss import QLoss, q_loss
from agents.apex_dqn.priorities import actor_priorities
from agents.bounds import check_numbers
from agents.exploration import epsilon_greedy, epsilon_ladder
from agents.importance import anneal, importance_weights
from agents.networks import DuelingHead, make_torso, over_time
from agents.optimizers import make_optimizer
from agents.q_learning import QLearnerState, follow_gradient, init_q_learner
from agents.requirements import discrete_actions
from agents.sequences import n_step_windows, take_rows
from agents.signatures import example_timestep
from replay.spec import EnvironmentSpec
from replay.steps import Array, Batch, Steps, Tree

QNetwork = Callable[[Params, Tree], Array]  # observation [B, *obs] -> q [B, A]


class ActorState(NamedTuple):
    """What an actor carries."""

    key: Key
    epsilon: Array  # [B] float32


def make_agent(config: ApexConfig, environment: EnvironmentSpec) -> Agent:
    """Builds the agent.

    Raises:
        ValueError: actions that aren't discrete, a replay of another kind than this algorithm's, or a network that the
            observation doesn't fit.
    """
    _check(config)
    actions = discrete_actions("apex_dqn", environment)
    torso = make_torso(config.network, config.hidden_sizes, environment)
    network = DuelingHead(torso, actions, config.head_size)
    optimizer = make_optimizer(
        config.optimizer, config.learning_rate, config.epsilon, config.max_gradient_norm, config.rmsprop_decay
    )

    def init_actor(key: Key, fleet: Fleet) -> ActorState:
        return ActorState(key, epsilon_ladder(fleet, config.epsilon_base, config.epsilon_exponent))

    def act(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        key, explore_key = jax.random.split(state.key)
        q = network.apply(params, timestep.observation)
        return _output(q, epsilon_greedy(explore_key, q, state.epsilon)), state._replace(key=key)

    def act_greedily(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        q = network.apply(params, timestep.observation)
        return _output(q, jnp.argmax(q, axis=1).astype(jnp.int32)), state

    def init_learner(key: Key) -> QLearnerState:
        params = network.init(key, example_timestep(environment, 1).observation)
        return init_q_learner(params, optimizer)

    return Agent(
        replay=config.replay,
        init_actor=init_actor,
        act=act,
        act_greedily=act_greedily,
        init_learner=init_learner,
        update=functools.partial(_update, config, network.apply, optimizer),
        actor_params=lambda state: state.params,
        initial_priorities=lambda steps: actor_priorities(steps, config),
    )


def _check(config: ApexConfig) -> None:
    check_numbers(config)
    if config.replay.queue or config.replay.burn_in:
        raise ValueError(
            f"agent_config.replay.queue={config.replay.queue}, burn_in={config.replay.burn_in}: Ape-X draws "
            "transitions again and again and carries no state. Set agent_config.replay.queue=False "
            "agent_config.replay.burn_in=0."
        )


def _update(
    config: ApexConfig,
    network: QNetwork,
    optimizer: optax.GradientTransformation,
    state: QLearnerState,
    batch: Batch,
) -> tuple[QLearnerState, Update]:
    exponent = anneal(state.step, config.importance_exponent, config.importance_exponent_final, config.importance_steps)
    weight = importance_weights(batch.info, exponent)
    loss = functools.partial(batch_loss, target_params=state.target_params, weight=weight, network=network)
    gradient, result = jax.grad(lambda params: loss(params, batch.steps, config=config), has_aux=True)(state.params)
    error = jnp.max(jnp.abs(result.td_error), axis=0)
    metrics = {
        "total": result.total,
        "td_error": jnp.mean(error),
        "gradient_norm": optax.tree.norm(gradient),
        "importance_exponent": exponent,
    }
    moved = follow_gradient(state, gradient, optimizer, config.target_period)
    return moved, Update(metrics, error + config.priority_floor)


def batch_loss(
    params: Params, steps: Steps, *, target_params: Params, weight: Array, network: QNetwork, config: ApexConfig
) -> tuple[Array, QLoss]:
    """The loss of the rows [L, B] of a batch with importance weights [B], and what came with it."""
    trace = slice(config.replay.trace)
    windows = n_step_windows(
        steps,
        rows=config.replay.trace,
        n_step=config.replay.n_step,
        discount=config.discount,
        reward_clip=config.reward_clip,
    )
    trained = jax.tree.map(lambda leaf: leaf[trace], steps.observation)
    after = take_rows(steps.observation, windows.bootstrap)
    result = q_loss(
        over_time(functools.partial(network, params), trained),
        steps.action[trace],
        steps.valid[trace],
        windows.reward,
        windows.discount,
        # Its argmax passes no gradient; without this the backward pass would be computed all the same.
        over_time(functools.partial(network, jax.lax.stop_gradient(params)), after),
        over_time(functools.partial(network, target_params), after),
        weight,
    )
    return result.total, result


def _output(q: Array, action: Array) -> ActorOutput:
    """The action, and what the priorities of new items are made of."""
    taken = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    return ActorOutput(action, {"q_taken": taken, "q_max": jnp.max(q, axis=1)})
