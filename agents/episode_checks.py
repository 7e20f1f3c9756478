"""For agents.contract: what an agent makes of ends of episodes, and whether arguments alone decide what it does."""

import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from agents.agent import Fleet
from agents.signatures import BATCH, KEY, example_timestep
from replay.spec import ReplaySpec
from replay.steps import Steps, Tree

if TYPE_CHECKING:
    from agents.contract import Case

SAME = 1e-3  # of an update's length: sums in another order differ by 1e-6 of it, leaks by more than 1e-2
SHUFFLED = 0.005  # of the loss, where minibatches depend on where a row stands: 0.002 measured with PPO, a leak 0.012
ADDRESS = re.compile(r"0x[0-9a-f]+")


def episodes_are_apart(case: "Case") -> None:
    """Nothing passes from one episode to another within a sequence."""
    steps, replay = case.batch(ends=False).steps, case.agent.replay
    if replay.n_step >= 2:
        base, changed = beyond_an_end(steps, replay)
        _want_near(case, base, changed, "what happened after its end got into an episode's targets")
    if replay.trace >= 4:
        one, other = two_orders(steps, replay)
        place = _difference(case, *alone(one, other, replay))  # of what is no leak
        loss_only = place.state > SAME
        bound = max(SHUFFLED, 3 * place.loss) if loss_only else SAME
        what = "it mattered which of two episodes of a sequence came first"
        _want_near(case, one, other, what, bound, loss_only=loss_only)


def priorities_are_usable(case: "Case") -> None:
    """Priorities, of the actor and of the learner, are finite and not negative."""
    batch = case.batch()
    if case.agent.initial_priorities is not None:
        first, again = (np.asarray(case.agent.initial_priorities(batch.steps)) for _ in range(2))
        _want_priorities("initial_priorities()", first)
        if not np.array_equal(first, again):
            raise ValueError(
                "initial_priorities() gave two answers to the same rows. Compute from its argument alone: no counter, "
                "no np.random."
            )
    priorities = case.update(case.learner, batch)[1].priorities
    if priorities is not None:
        _want_priorities("update().priorities", np.asarray(priorities))


def arguments_decide(case: "Case") -> None:
    """Functions compute in 32 bits, from their arguments alone: no Python counter, no global random numbers."""
    agent, fleet = case.agent, Fleet(0, 1, BATCH)
    learner = jax.eval_shape(agent.init_learner, KEY)
    actor = jax.eval_shape(lambda key: agent.init_actor(key, fleet), KEY)
    params, timestep = jax.eval_shape(agent.actor_params, learner), example_timestep(case.environment, BATCH)
    functions: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
        ("init_learner", agent.init_learner, (KEY,)),
        ("init_actor", lambda key: agent.init_actor(key, fleet), (KEY,)),
        ("act", agent.act, (params, actor, timestep)),
        ("act_greedily", agent.act_greedily, (params, actor, timestep)),
        ("update", agent.update, (learner, case.batch())),
    )
    for name, function, arguments in functions:
        one, other = (_traced(name, function, arguments) for _ in range(2))
        if one[0] != other[0] or not all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True)):
            raise ValueError(
                f"{name}() is another function each time it is traced. Compute from its arguments alone: no Python "
                "counter, no np.random; keep what must be remembered in the state, and draw from its key."
            )


def beyond_an_end(steps: Steps, replay: ReplaySpec) -> tuple[Steps, Steps]:
    """Rows that differ only in a second episode, none of whose rows is trained on: n steps reach into it.

    The last row that is trained on terminates its episode, in every other sequence truncates it.
    """
    base: Steps = jax.tree.map(np.copy, steps)
    end = replay.burn_in + replay.trace - 1
    base.terminated[end, 0::2] = True
    base.truncated[end, 1::2] = True
    base.valid[end + 1] = False
    base.first[end + 2] = True
    changed: Steps = jax.tree.map(np.copy, base)
    for leaf in jax.tree.leaves((changed.observation, changed.reward, changed.extras)):
        leaf[end + 2 :] = ~leaf[end + 2 :] if leaf.dtype == bool else leaf[end + 2 :] + 1
    return base, changed


def two_orders(steps: Steps, replay: ReplaySpec) -> tuple[Steps, Steps]:
    """The same two whole episodes in every sequence, in either order; all other rows are padding."""
    one: Steps = jax.tree.map(np.copy, steps)
    half, start = replay.trace // 2, replay.burn_in  # rows of an episode, the one that shows its end included
    middle, stop = start + half, start + 2 * half
    one.valid[:start] = False
    one.valid[stop:] = False
    one.first[stop] = True
    for begin in (start, middle):
        one.first[begin] = True
        one.terminated[begin + half - 2, 0::2] = True
        one.truncated[begin + half - 2, 1::2] = True
        one.valid[begin + half - 1] = False
    order = [*range(start), *range(middle, stop), *range(start, middle), *range(stop, len(one.valid))]
    return one, jax.tree.map(lambda leaf: leaf[order], one)


def alone(one: Steps, other: Steps, replay: ReplaySpec) -> tuple[Steps, Steps]:
    """As two_orders(), but of the two episodes only one is left: first in the one, second in the other."""
    middle = replay.burn_in + replay.trace // 2
    first, second = one.valid.copy(), other.valid.copy()
    first[middle:] = False
    second[:middle] = False
    return one._replace(valid=first), other._replace(valid=second)


def _traced(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """What a function computes, as text and constants."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = jax.make_jaxpr(lambda *arguments: function(*arguments))(*arguments)
    for warning in caught:
        if "64" in str(warning.message) and "dtype" in str(warning.message):
            raise ValueError(f"{name}() asks for 64 bits: {warning.message} Use jnp.float32 or jnp.int32.")
    return ADDRESS.sub("", str(traced)), list(traced.consts)


def _want_priorities(name: str, priorities: Any) -> None:
    if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
        wrong = priorities[~(np.isfinite(priorities) & (priorities >= 0))]
        raise ValueError(f"{name} has {wrong[:3]} among them, want finite numbers >= 0. Take absolute errors.")


class Difference(NamedTuple):
    """How far two updates are apart."""

    state: float  # of the update's length
    loss: float  # of the loss
    priorities: bool  # whether they differ


def _difference(case: "Case", one: Steps, other: Steps) -> Difference:
    (first, said), (second, also) = case.learn(one), case.learn(other)
    losses = float(said.metrics["total"]), float(also.metrics["total"])
    pairs = zip(jax.tree.leaves(said.priorities), jax.tree.leaves(also.priorities), strict=True)
    return Difference(
        state=_distance(first, second) / max(_distance(first, case.learner), 1e-30),
        loss=abs(losses[0] - losses[1]) / max(abs(losses[0]), 1e-3),
        priorities=not all(np.allclose(a, b, rtol=SAME, atol=1e-5) for a, b in pairs),
    )


def _want_near(
    case: "Case", one: Steps, other: Steps, what: str, bound: float = SAME, *, loss_only: bool = False
) -> None:
    found = _difference(case, one, other)
    if found.loss > bound or (not loss_only and (found.state > bound or found.priorities)):
        raise ValueError(
            f"update(): {what}. The loss differed by {found.loss:.2g} of itself, the new state by {found.state:.2g} of "
            "the update's length. No reward or value may pass a row that isn't valid, and recurrent states begin anew "
            "where `first` is set: see agents.sequences."
        )


def _distance(one: Tree, other: Tree) -> float:
    """Between two states' floats."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    squares = [
        np.square(np.asarray(a, np.float64) - np.asarray(b, np.float64)).sum()
        for a, b in pairs
        if np.issubdtype(a.dtype, np.floating)
    ]
    return float(np.sqrt(sum(squares)))
