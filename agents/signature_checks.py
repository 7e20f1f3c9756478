"""Whether an agent's functions fit each other, its replay and an environment: cheap enough to ask before every run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.agent import Agent, Update
from agents.signatures import BATCH, extras_spec, state_spec, trace_actor, trace_learner, zero_batch
from replay.spec import EnvironmentSpec
from replay.steps import Tree


def check_agent(agent: Agent, environment: EnvironmentSpec) -> None:
    """Traces every function once, and computes nothing but initial_priorities.

    Raises:
        ValueError: names the function, the leaf, what it got, what it wants, and what to do.
    """
    check_acting(agent, environment)
    check_learning(agent, environment)
    check_initial_priorities(agent, environment)


def check_acting(agent: Agent, environment: EnvironmentSpec) -> None:
    """init_actor, act, act_greedily and stored_state."""
    action = environment.action_array
    extras, stored = extras_spec(agent, environment), state_spec(agent, environment)
    _check_storable("stored_state()", stored)
    for name, greedy in (("act", False), ("act_greedily", True)):
        traced = trace_actor(agent, environment, greedy=greedy)
        _check_array(f"{name}().action", traced.output.action, (BATCH, *action.shape), action.dtype)
        check_same(f"{name}(): the state", traced.before, traced.after)
        if not greedy:
            _check_storable("act().extras", extras)


def check_learning(agent: Agent, environment: EnvironmentSpec) -> None:
    """init_learner, actor_params and update."""
    before, answer = trace_learner(agent, environment)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Update)):
        raise ValueError(f"update() gave {answer}, want (LearnerState, Update). Return both, in this order.")
    after, update = answer
    check_same("update(): the state", before, after)
    if not isinstance(update.metrics, dict) or "total" not in update.metrics:
        raise ValueError(f'update().metrics is {update.metrics!r}, want a dict with the loss as "total".')
    for name, value in update.metrics.items():
        if value.shape:
            raise ValueError(f"update().metrics[{name!r}] has shape {value.shape}, want a scalar. Take its mean.")
    if update.priorities is not None:
        _check_array("update().priorities", update.priorities, (BATCH,), "float32")
    elif agent.replay.prioritized:
        raise ValueError(
            "update().priorities is None, but the replay is prioritized: all items would keep their first priority. "
            'Return priorities [B], or set agent_config.replay.sampler="uniform".'
        )


def check_initial_priorities(agent: Agent, environment: EnvironmentSpec) -> None:
    """Runs initial_priorities on rows of zeros, as numpy arrays and without observations, as actors may call it."""
    if agent.initial_priorities is None:
        return
    steps = zero_batch(agent, environment, BATCH).steps._replace(observation=None)
    priorities = np.asarray(agent.initial_priorities(steps))
    _check_array("initial_priorities()", priorities, (BATCH,), "float32")
    if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
        raise ValueError(f"initial_priorities() gave {priorities}, want finite numbers >= 0: others break a table.")


def check_same(name: str, before: Tree, after: Tree) -> None:
    """Raises ValueError where two trees differ in structure, shapes or dtypes: every call would be traced anew."""
    want, got = str(jax.tree_util.tree_structure(before)), str(jax.tree_util.tree_structure(after))
    if want != got:
        raise ValueError(
            f"{name} has the structure {got} afterwards, want {want} as before. Return the same structure."
        )
    leaves = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree_util.tree_leaves(after), strict=True)
    for (path, old), new in leaves:
        if describe(old) != describe(new):
            raise ValueError(
                f"{name} has at {jax.tree_util.keystr(path) or 'its root'} {describe(new)} afterwards, want "
                f"{describe(old)} as before. Convert it, e.g. with jnp.asarray(value, jnp.{old.dtype})."
            )


def check_leaves(name: str, tree: Tree) -> None:
    """Raises ValueError for a leaf that isn't an array, or of a dtype that doesn't travel: 64 bits, or a typed key."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = f"{name} at {jax.tree_util.keystr(path) or 'its root'}"
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            raise ValueError(
                f"{where} is {leaf!r} of type {type(leaf).__name__}, want an array. Use jnp.asarray(value)."
            )
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(f"{where} is a typed key, want a raw one, uint32 [2]. Use jax.random.key_data(key).")
        if leaf.dtype.itemsize > 4:
            narrow = {"f": "float32", "i": "int32", "u": "uint32", "c": "complex64"}[leaf.dtype.kind]
            raise ValueError(
                f"{where} is {leaf.dtype}, want 32 bits or fewer: devices would compute with {narrow} and compile "
                f"anew for it. Use jnp.{narrow}."
            )


def describe(leaf: Any) -> str:
    """E.g. "float32[3,4]". A weak dtype, that of Python's numbers, is another than the one it looks like."""
    weak = " (weak: of a Python number)" if getattr(leaf, "weak_type", False) else ""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]{weak}"


def _check_array(name: str, leaf: Any, shape: tuple[int, ...], dtype: str) -> None:
    if tuple(leaf.shape) != shape or str(leaf.dtype) != dtype:
        raise ValueError(
            f"{name} is {describe(leaf)}, want {dtype}[{','.join(map(str, shape))}] for {BATCH} environments or "
            f"sequences. Convert it with .astype({dtype!r}), or reshape it."
        )


def _check_storable(name: str, specs: Tree) -> None:
    for path, spec in jax.tree_util.tree_leaves_with_path(specs):
        dtype = jnp.dtype(spec.dtype)
        if dtype.itemsize > 4 or dtype.kind not in "biufV":
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} has dtype {spec.dtype}, want bool, an integer or a float of 32 "
                "bits or fewer. Convert it, e.g. with .astype('float32')."
            )
