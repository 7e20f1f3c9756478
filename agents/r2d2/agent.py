"""R2D2 as an Agent record."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.agent import ActorOutput, Agent, Fleet, Key, Params, TimeStep, Update
from agents.bounds import check_numbers
from agents.data_parallel import each_share
from agents.exploration import epsilon_greedy, epsilon_ladder
from agents.importance import importance_weights
from agents.networks import make_torso
from agents.optimizers import make_optimizer
from agents.q_learning import QLearnerState, follow_gradient, init_q_learner
from agents.r2d2.config import R2d2Config
from agents.r2d2.loss import RecurrentQLoss, recurrent_q_loss
from agents.r2d2.network import Inputs, RecurrentQ
from agents.r2d2.priorities import actor_priorities, sequence_priorities
from agents.recurrent import Memory, empty_memory
from agents.requirements import discrete_actions
from agents.sequences import n_step_windows, preceding, skip_rows, take_rows
from agents.signatures import example_timestep
from replay.spec import EnvironmentSpec
from replay.steps import Array, Batch, Steps

Network = Callable[[Params, Memory, Inputs], tuple[Array, Memory]]  # q [T, B, A], and the memory after


class StoredState(NamedTuple):
    """What is kept at the first row of each sequence. The reward before is an extra: only act() sees it."""

    memory: Memory
    action: Array  # [B] int32, of the row before


class ActorState(NamedTuple):
    """What an actor carries."""

    key: Key
    epsilon: Array  # [B] float32
    stored: StoredState


def make_agent(config: R2d2Config, environment: EnvironmentSpec) -> Agent:
    """Builds the agent.

    Raises:
        ValueError: actions that aren't discrete, a replay of another kind than this algorithm's, or a network that the
            observation doesn't fit.
    """
    _check(config)
    actions = discrete_actions("r2d2", environment)
    torso = make_torso(config.network, config.hidden_sizes, environment)
    network = RecurrentQ(torso, actions, config.lstm_size, config.head_size)
    optimizer = make_optimizer(
        config.optimizer, config.learning_rate, config.epsilon, config.max_gradient_norm, config.rmsprop_decay
    )

    def init_actor(key: Key, fleet: Fleet) -> ActorState:
        stored = StoredState(
            empty_memory(fleet.environments, config.lstm_size), jnp.zeros(fleet.environments, jnp.int32)
        )
        return ActorState(key, epsilon_ladder(fleet, config.epsilon_base, config.epsilon_exponent), stored)

    def values(params: Params, state: ActorState, timestep: TimeStep) -> tuple[Array, Memory]:
        inputs = Inputs(timestep.observation, state.stored.action, timestep.reward, timestep.first)
        q, memory = network.apply(params, state.stored.memory, jax.tree.map(lambda leaf: leaf[None], inputs))
        return q[0], memory

    def act(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        key, explore_key = jax.random.split(state.key)
        q, memory = values(params, state, timestep)
        action = epsilon_greedy(explore_key, q, state.epsilon)
        return _output(q, action, timestep), ActorState(key, state.epsilon, StoredState(memory, action))

    def act_greedily(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        q, memory = values(params, state, timestep)
        action = jnp.argmax(q, axis=1).astype(jnp.int32)
        return _output(q, action, timestep), state._replace(stored=StoredState(memory, action))

    def init_learner(key: Key) -> QLearnerState:
        timestep = example_timestep(environment, 1)
        actor = init_actor(key, Fleet(0, 1, 1))
        inputs = Inputs(timestep.observation, actor.stored.action, timestep.reward, timestep.first)
        params = network.init(key, actor.stored.memory, jax.tree.map(lambda leaf: leaf[None], inputs))
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
        stored_state=lambda state: state.stored,
    )


def _check(config: R2d2Config) -> None:
    check_numbers(config)
    if config.replay.queue:
        raise ValueError(
            f"agent_config.replay.queue={config.replay.queue}: R2D2 draws sequences again and again. "
            "Set agent_config.replay.queue=False."
        )


def _update(
    config: R2d2Config, network: Network, optimizer: optax.GradientTransformation, state: QLearnerState, batch: Batch
) -> tuple[QLearnerState, Update]:
    weight = importance_weights(batch.info, config.importance_exponent)
    loss = functools.partial(
        batch_loss, batch=batch, target_params=state.target_params, weight=weight, network=network, config=config
    )
    gradient, result = jax.grad(loss, has_aux=True)(state.params)
    valid = skip_rows(batch.steps.valid, config.replay.burn_in)[: config.replay.trace]
    priorities = sequence_priorities(result.td_error, valid, config)
    metrics = {
        "total": result.total,
        "priority": jnp.mean(priorities),
        "gradient_norm": optax.tree.norm(gradient),
    }
    moved = follow_gradient(state, gradient, optimizer, config.target_period)
    return moved, Update(metrics, priorities)


def batch_loss(
    params: Params, *, batch: Batch, target_params: Params, weight: Array, network: Network, config: R2d2Config
) -> tuple[Array, RecurrentQLoss]:
    """The loss of a batch with importance weights [B], and what came with it."""
    replay = config.replay
    inputs = inputs_of(batch.steps, batch.state)
    online = unroll(params, batch.state.memory, inputs, network=network, burn_in=replay.burn_in)
    target = unroll(target_params, batch.state.memory, inputs, network=network, burn_in=replay.burn_in)
    steps, trained = skip_rows(batch.steps, replay.burn_in), slice(replay.trace)
    windows = n_step_windows(
        steps,
        rows=replay.trace,
        n_step=replay.n_step,
        discount=config.discount,
        reward_clip=config.reward_clip,
    )
    result = recurrent_q_loss(
        online[trained],
        steps.action[trained],
        steps.valid[trained],
        windows.reward,
        windows.discount,
        take_rows(jax.lax.stop_gradient(online), windows.bootstrap),
        take_rows(target, windows.bootstrap),
        weight,
    )
    return result.total, result


def inputs_of(steps: Steps, stored: StoredState) -> Inputs:
    """What the network saw of rows [L, B] as it acted, from what was stored."""
    return Inputs(
        observation=steps.observation,
        action=preceding(steps.action, stored.action),
        reward=preceding(steps.reward, steps.extras["previous_reward"][0]),
        first=steps.first,
    )


def unroll(params: Params, memory: Memory, inputs: Inputs, *, network: Network, burn_in: int) -> Array:
    """Action values of the rows after `burn_in`. [L - burn_in, B, A].

    The first rows only warm up the memory, and pass no gradient.
    """
    network = each_share(network, (None, 0, 1), (1, 0))  # else its gradient crosses devices at every row
    if burn_in:
        warm_up = jax.tree.map(lambda leaf: leaf[:burn_in], inputs)
        memory = network(jax.lax.stop_gradient(params), memory, warm_up)[1]
    return network(params, memory, skip_rows(inputs, burn_in))[0]


def _output(q: Array, action: Array, timestep: TimeStep) -> ActorOutput:
    """The action, what the priorities of new items are made of, and the reward before."""
    taken = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    extras = {"q_taken": taken, "q_max": jnp.max(q, axis=1), "previous_reward": timestep.reward}
    return ActorOutput(action, extras)
