"""What an agent's functions take and give, found without computing anything: by tracing them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.agent import ActorOutput, ActorState, Agent, Fleet, LearnerState, Params, TimeStep
from replay.spec import ArraySpec, EnvironmentSpec
from replay.steps import Batch, SampleInfo, Steps, Tree

BATCH = 3  # environments of the traced fleet; any other number than an axis is likely to have
KEY = jax.ShapeDtypeStruct((2,), np.uint32)


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
    extras = trace_actor(agent, environment).output.extras
    return {name: _unbatched(f"act().extras[{name!r}]", value) for name, value in extras.items()}


def state_spec(agent: Agent, environment: EnvironmentSpec) -> Tree:
    """What stored_state() keeps at the first row of each sequence, without the batch axis; () for none."""
    if agent.stored_state is None:
        return ()
    stored = trace("stored_state", agent.stored_state, trace_actor(agent, environment).before)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _unbatched(f"stored_state(){jax.tree_util.keystr(path)}", leaf), stored
    )


class ActorTrace(NamedTuple):
    """Shapes and dtypes around one step of BATCH environments."""

    params: Params
    before: ActorState
    output: ActorOutput
    after: ActorState


def trace(name: str, function: Callable[..., Tree], *arguments: Tree) -> Tree:
    """Shapes and dtypes of what a function of the agent gives.

    Raises:
        ValueError: there is something else in it than arrays and numbers; names the function and the leaf.
    """

    def checked(*traced: Tree) -> Tree:
        answer = function(*traced)
        for path, leaf in jax.tree_util.tree_leaves_with_path(answer):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
                raise ValueError(
                    f"{name}() gives {leaf!r} of type {type(leaf).__name__} at "
                    f"{jax.tree_util.keystr(path) or 'its root'}, want a pytree of arrays. Return arrays in dicts, "
                    "tuples or NamedTuples, or register the class with jax.tree_util.register_dataclass."
                )
        return answer

    return jax.eval_shape(checked, *arguments)


def trace_actor(agent: Agent, environment: EnvironmentSpec, *, greedy: bool = False) -> ActorTrace:
    """Traces init_learner, actor_params, init_actor and act, or act_greedily."""
    name = "act_greedily" if greedy else "act"
    learner = trace("init_learner", agent.init_learner, KEY)
    params = trace("actor_params", agent.actor_params, learner)
    before = trace("init_actor", lambda key: agent.init_actor(key, Fleet(0, 1, BATCH)), KEY)
    answer = trace(name, getattr(agent, name), params, before, example_timestep(environment, BATCH))
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], ActorOutput)):
        raise ValueError(f"{name}() gave {answer}, want (ActorOutput, ActorState). Return both, in this order.")
    if not isinstance(answer[0].extras, dict):
        raise ValueError(f"{name}().extras is {answer[0].extras!r}, want a dict of arrays. Return {{}} for none.")
    return ActorTrace(params, before, *answer)


def trace_learner(agent: Agent, environment: EnvironmentSpec, batch_size: int = BATCH) -> tuple[LearnerState, Any]:
    """Traces init_learner and update: the first state, and what update() answers. Shapes and dtypes only."""
    state = trace("init_learner", agent.init_learner, KEY)
    return state, trace("update", agent.update, state, zero_batch(agent, environment, batch_size))


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


def _unbatched(name: str, leaf: Any) -> ArraySpec:
    if not leaf.shape or leaf.shape[0] != BATCH:
        raise ValueError(
            f"{name} has shape {leaf.shape} for {BATCH} environments: axis 0 must be the environments. "
            f"Return [B, ...], here ({BATCH}, ...)."
        )
    return ArraySpec(shape=tuple(leaf.shape[1:]), dtype=str(leaf.dtype))
