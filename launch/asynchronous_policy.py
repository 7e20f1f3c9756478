"""One policy for all threads of an accelerated actor: it acts for any of the environments, by their numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from agents.agent import ActorOutput, ActorState, Agent, Fleet, Key, Params, TimeStep
from replay.steps import Array, Tree


class Acted(NamedTuple):
    """What one call of the policy gives; still on the device."""

    output: ActorOutput  # [M, ...]
    memory: Tree  # [M, ...] what is stored beside the rows; () for nothing
    state: ActorState  # of all environments, for the next call


Policy = Callable[[Params, ActorState, TimeStep, Array], Acted]


def make_policy(agent: Agent, environments: int) -> Policy:
    """Jitted: (weights, state of all environments, what some of them [M] show, which ones [M]) -> Acted.

    The state stays on the device, where the rows of those environments are taken from it and put back; it is donated.
    """
    batched = leaves_by_environment(agent, environments)
    stored_state = agent.stored_state

    def act(params: Params, state: ActorState, timestep: TimeStep, ids: Array) -> Acted:
        leaves, treedef = jax.tree_util.tree_flatten(state)
        own = [leaf[ids] if each else leaf for leaf, each in zip(leaves, batched, strict=True)]
        before = jax.tree_util.tree_unflatten(treedef, own)
        output, after = agent.act(params, before, timestep)
        put_back = [
            leaf.at[ids].set(new) if each else new
            for leaf, new, each in zip(leaves, jax.tree_util.tree_leaves(after), batched, strict=True)
        ]
        memory = () if stored_state is None else stored_state(before)
        return Acted(output, memory, jax.tree_util.tree_unflatten(treedef, put_back))

    jitted: Policy = jax.jit(act, donate_argnums=1)
    return jitted


def leaves_by_environment(agent: Agent, environments: int) -> list[bool]:
    """Which leaves of an actor's state have the environments on axis 0: those that grow with their number."""

    def shapes(count: int) -> list[Any]:
        key = jax.ShapeDtypeStruct((2,), "uint32")
        return jax.tree_util.tree_leaves(jax.eval_shape(lambda key: agent.init_actor(key, Fleet(0, 1, count)), key))

    pairs = zip(shapes(environments), shapes(environments + 1), strict=True)
    return [some.shape != more.shape for some, more in pairs]


def init_state(agent: Agent, key: Key, fleet: Fleet) -> ActorState:
    """The first state, on the device."""
    return jax.jit(agent.init_actor, static_argnums=1)(key, fleet)
