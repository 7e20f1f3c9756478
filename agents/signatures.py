"""What an agent stores beside each step, found without computing anything: by tracing its functions."""

from typing import Any

import jax
import numpy as np

from agents.agent import Agent, Fleet, TimeStep
from replay.spec import ArraySpec, EnvironmentSpec
from replay.steps import Batch, SampleInfo, Steps, Tree

BATCH = 3  # environments of the traced fleet; any other number than an axis is likely to have


def map_observation(environment: EnvironmentSpec, make: Any) -> Tree:
    """Applies make(ArraySpec) to the observation's one spec, or to each of a dict."""
    if isinstance(environment.observation, ArraySpec):
        return make(environment.observation)
    return {name: make(spec) for name, spec in environment.observation.items()}


def example_timestep(environment: EnvironmentSpec, environments: int) -> TimeStep:
    """A first step [B, ...] with observations of zeros, or of the minimum where zero is below it."""
    flags = np.zeros(environments, bool)

    def observe(spec: ArraySpec) -> np.ndarray[Any, Any]:
        return np.full((environments, *spec.shape), max(spec.minimum, 0), spec.dtype)

    return TimeStep(
        observation=map_observation(environment, observe),
        reward=np.zeros(environments, np.float32),
        first=np.ones(environments, bool),
        terminated=flags,
        truncated=flags,
    )


def extras_spec(agent: Agent, environment: EnvironmentSpec) -> dict[str, ArraySpec]:
    """What act() stores beside each step, without the batch axis.

    Raises:
        ValueError: act() doesn't answer as ActorOutput says; names the function, the leaf, got and want.
    """
    output = jax.eval_shape(lambda key: _first_act(agent, environment, key), _key())
    return {name: _unbatched(f"act().extras[{name!r}]", value) for name, value in output.extras.items()}


def state_spec(agent: Agent, environment: EnvironmentSpec) -> Tree:
    """What stored_state() keeps at the first row of each sequence, without the batch axis; () for none."""
    if agent.stored_state is None:
        return ()
    stored = agent.stored_state
    state = jax.eval_shape(lambda key: stored(agent.init_actor(key, Fleet(0, 1, BATCH))), _key())
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _unbatched(f"stored_state(){jax.tree_util.keystr(path)}", leaf), state
    )


def zero_batch(agent: Agent, environment: EnvironmentSpec, batch_size: int) -> Batch:
    """A batch [L, B, ...] of valid rows of zeros, as an example of what update() gets."""
    length = agent.replay.sequence_length

    def zeros(spec: ArraySpec) -> np.ndarray[Any, Any]:
        return np.zeros((length, batch_size, *spec.shape), spec.dtype)

    flags = np.zeros((length, batch_size), bool)
    state = jax.tree.map(lambda spec: np.zeros((batch_size, *spec.shape), spec.dtype), state_spec(agent, environment))
    return Batch(
        steps=Steps(
            observation=map_observation(environment, zeros),
            action=zeros(environment.action_array),
            reward=np.zeros((length, batch_size), np.float32),
            first=flags,
            terminated=flags,
            truncated=flags,
            valid=~flags,
            version=np.zeros((length, batch_size), np.int32),
            extras={name: zeros(spec) for name, spec in extras_spec(agent, environment).items()},
        ),
        state=state,
        info=SampleInfo(
            probability=np.full(batch_size, 1 / 1000, np.float32),
            correction=np.ones(batch_size, np.float32),
            items=np.full(batch_size, 1000, np.int32),
        ),
    )


def _key() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2,), np.uint32)


def _first_act(agent: Agent, environment: EnvironmentSpec, key: jax.Array) -> Any:
    params = agent.actor_params(agent.init_learner(key))
    state = agent.init_actor(key, Fleet(0, 1, BATCH))
    output, _ = agent.act(params, state, example_timestep(environment, BATCH))
    return output


def _unbatched(name: str, leaf: Any) -> ArraySpec:
    if not leaf.shape or leaf.shape[0] != BATCH:
        raise ValueError(
            f"{name} has shape {leaf.shape} for {BATCH} environments: axis 0 must be the environments. "
            f"Return [B, ...], here ({BATCH}, ...)."
        )
    return ArraySpec(shape=tuple(leaf.shape[1:]), dtype=str(leaf.dtype))
