"""Ape-X DQN as an Agent record."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agents.agent import ActorOutput, Agent, Fleet, Key, Params, TimeStep, Update
from agents.apex_dqn.config import ApexConfig
from agents.apex_dqn.loss import double_q_values, q_loss
from agents.exploration import epsilon_greedy, epsilon_ladder
from agents.importance import importance_weights
from agents.networks import DuelingHead, make_torso, over_time, prepare
from agents.optimizers import make_optimizer
from agents.sequences import discounts_of, rewards_of
from agents.signatures import example_timestep
from replay.spec import DiscreteAction, EnvironmentSpec
from replay.steps import Array, Batch, Steps, Tree


class ActorState(NamedTuple):
    """What an actor carries."""

    key: Key
    epsilon: Array  # [B] float32


class LearnerState(NamedTuple):
    """What the learner carries."""

    params: Params
    target_params: Params
    optimizer: optax.OptState
    step: Array  # int32, updates done


def make_agent(config: ApexConfig, environment: EnvironmentSpec) -> Agent:
    """Builds the agent.

    Raises:
        ValueError: actions that aren't discrete, or a replay of another kind than this algorithm's.
    """
    if not isinstance(environment.action, DiscreteAction):
        raise ValueError(
            f"agent=apex_dqn chooses among discrete actions, and this environment takes {environment.action}."
        )
    if config.replay.queue or config.replay.burn_in:
        raise ValueError(
            f"agent_config.replay={config.replay}: Ape-X draws transitions again and again and carries no state. "
            "Set agent_config.replay.queue=False agent_config.replay.burn_in=0."
        )
    network = DuelingHead(
        make_torso(config.network, config.hidden_sizes, environment), environment.action.count, config.head_size
    )
    optimizer = make_optimizer(config.optimizer, config.learning_rate, config.epsilon, config.max_gradient_norm)
    trace, n_step = config.replay.trace, config.replay.n_step

    def apply(params: Params, observation: Tree) -> Array:
        return network.apply(params, prepare(observation, environment))

    def init_actor(key: Key, fleet: Fleet) -> ActorState:
        return ActorState(key, epsilon_ladder(fleet, config.epsilon_base, config.epsilon_exponent))

    def act(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        key, explore_key = jax.random.split(state.key)
        q = apply(params, timestep.observation)
        action = epsilon_greedy(explore_key, q, state.epsilon)
        return ActorOutput(action, _extras(q, action)), state._replace(key=key)

    def act_greedily(params: Params, state: ActorState, timestep: TimeStep) -> tuple[ActorOutput, ActorState]:
        q = apply(params, timestep.observation)
        action = jnp.argmax(q, axis=1).astype(jnp.int32)
        return ActorOutput(action, _extras(q, action)), state

    def initial_priorities(steps: Steps) -> Any:
        """Absolute n-step TD errors from what the actor's own network said; numpy [L, B] -> [B] for trace 1."""
        return actor_priorities(steps, config, trace, n_step)

    def init_learner(key: Key) -> LearnerState:
        example = prepare(example_timestep(environment, 1).observation, environment)
        params = network.init(key, example)
        copy = jax.tree.map(jnp.copy, params)
        return LearnerState(params, copy, optimizer.init(params), jnp.zeros((), jnp.int32))

    def loss(params: Params, target_params: Params, batch: Batch, exponent: Array) -> tuple[Any, Any]:
        rows = jax.tree.map(lambda leaf: leaf[:-1], batch.steps)
        following = jax.tree.map(lambda leaf: leaf[1:], batch.steps.observation)
        trained = jax.tree.map(lambda leaf: leaf[:trace], batch.steps.observation)
        next_value = double_q_values(
            over_time(lambda observation: apply(params, observation), following),
            over_time(lambda observation: apply(target_params, observation), following),
        )
        result = q_loss(
            over_time(lambda observation: apply(params, observation), trained),
            rows.action[:trace],
            rows.valid[:trace],
            rewards_of(rows, config.reward_clip),
            discounts_of(rows, config.discount),
            rows.truncated,
            next_value,
            importance_weights(batch.info, exponent),
            n_step=n_step,
        )
        return result.total, result.td_error

    def update(state: LearnerState, batch: Batch) -> tuple[LearnerState, Update]:
        progress = jnp.minimum(state.step / config.importance_steps, 1.0)
        exponent = config.importance_exponent + progress * (
            config.importance_exponent_final - config.importance_exponent
        )
        (total, td_error), gradient = jax.value_and_grad(loss, has_aux=True)(
            state.params, state.target_params, batch, exponent
        )
        change, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params, step = optax.apply_updates(state.params, change), state.step + 1
        target_params = optax.periodic_update(params, state.target_params, step, config.target_period)
        error = jnp.max(jnp.abs(td_error), axis=0)
        metrics = {"total": total, "td_error": jnp.mean(error), "gradient_norm": optax.global_norm(gradient)}
        return (
            LearnerState(params, target_params, optimizer_state, step),
            Update(metrics, error + config.priority_floor),
        )

    return Agent(
        replay=config.replay,
        init_actor=init_actor,
        act=act,
        act_greedily=act_greedily,
        init_learner=init_learner,
        update=update,
        actor_params=lambda state: state.params,
        initial_priorities=initial_priorities,
    )


def actor_priorities(steps: Steps, config: ApexConfig, trace: int, n_step: int) -> Any:
    """Priorities [B] of new items from what the actor's network said as it acted (Horgan et al. 2018, algorithm 1).

    Plain numpy, for it runs at every environment step, where a call of a jitted function would cost more than this.
    """
    reward = np.clip(steps.reward, -config.reward_clip, config.reward_clip) if config.reward_clip else steps.reward
    reward = np.where(steps.valid, reward, 0.0)
    discount = config.discount * (steps.valid & ~steps.terminated)
    error = np.zeros(steps.reward.shape[1], np.float32)
    for row in range(trace):
        last = row + n_step
        target = steps.extras["q_max"][last]
        for back in range(last - 1, row - 1, -1):
            target = np.where(steps.truncated[back], steps.extras["q_max"][back + 1], target)
            target = reward[back] + discount[back] * target
        taken = np.abs(target - steps.extras["q_taken"][row])
        error = np.maximum(error, np.where(steps.valid[row], taken, 0.0))
    return (error + config.priority_floor).astype(np.float32)


def _extras(q: Array, action: Array) -> dict[str, Array]:
    """What the actor's priorities are made of."""
    return {"q_taken": jnp.take_along_axis(q, action[:, None], axis=1)[:, 0], "q_max": jnp.max(q, axis=1)}
