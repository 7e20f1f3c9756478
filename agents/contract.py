"""What every agent must hold to, as checks to run: `python -m agents.contract my_package.my_module:make_agent`.

An agent that passes can be trained by the role loops as it is. Each check says what it got, what it wants and why.
"""

import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import app, flags, logging

from agents import signature_checks
from agents.agent import Agent, Fleet, LearnerState
from agents.episode_checks import arguments_decide, episodes_are_apart, priorities_are_usable
from agents.example_batches import random_batch, random_observation
from agents.registry import config_type, resolve
from agents.signatures import example_timestep
from replay.spec import ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec
from replay.steps import Batch, Steps, Tree

BATCH = 8  # sequences
ACTORS = 32  # environments in the checks of acting
UPDATES = 60  # on one batch, after which its loss must have fallen; no more are made once it fell by a tenth

EXAMPLES = {
    "vector": EnvironmentSpec(observation=ArraySpec(shape=(4,), dtype="float32"), action=DiscreteAction(count=3)),
    "image": EnvironmentSpec(
        observation=ArraySpec(shape=(4, 40, 36), dtype="uint8", minimum=0, maximum=255, stacked=True),
        action=DiscreteAction(count=3),
    ),
    "dict": EnvironmentSpec(
        observation={"pose": ArraySpec(shape=(2, 3), dtype="float32"), "on": ArraySpec(shape=(), dtype="bool")},
        action=DiscreteAction(count=3),
    ),
    "continuous": EnvironmentSpec(
        observation=ArraySpec(shape=(4,), dtype="float32"),
        action=ContinuousAction(size=2, minimum=(-1.0, -1.0), maximum=(1.0, 1.0)),
    ),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """An agent on an environment."""

    agent: Agent
    environment: EnvironmentSpec

    @functools.cached_property
    def learner(self) -> LearnerState:
        """A first state."""
        return self.agent.init_learner(jax.random.PRNGKey(0))

    @functools.cached_property
    def update(self) -> Callable[[LearnerState, Batch], Any]:
        """Jitted, without donation: the checks use states again."""
        return jax.jit(self.agent.update)

    def batch(self, *, seed: int = 0, ends: bool = True) -> Batch:
        """A batch that this agent acted in."""
        params = self.agent.actor_params(self.learner)
        return random_batch(self.agent, self.environment, params, batch_size=BATCH, seed=seed, ends=ends)

    def learn(self, steps: Steps) -> Tree:
        """All that an update on these rows gives."""
        return self.update(self.learner, self.batch(ends=False)._replace(steps=steps))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one check."""

    check: str
    passed: bool
    message: str  # why not; "" where passed


def signatures_fit(case: Case) -> None:
    """Functions fit each other, the environment and the replay: structures, shapes and dtypes."""
    signature_checks.check_agent(case.agent, case.environment)


def states_are_arrays(case: Case) -> None:
    """States are arrays of 32 bits or fewer, keys are raw, and no two leaves share a buffer."""
    for name, state in (
        ("init_actor()", case.agent.init_actor(jax.random.PRNGKey(0), Fleet(0, 1, 2))),
        ("init_learner()", case.learner),
        ("actor_params()", case.agent.actor_params(case.learner)),
    ):
        signature_checks.check_leaves(name, state)
    buffers: dict[int, str] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(case.learner):
        where = jax.tree_util.keystr(path)
        if isinstance(leaf, jax.Array) and leaf.size:
            other = buffers.setdefault(leaf.unsafe_buffer_pointer(), where)
            _want(
                other == where,
                f"init_learner(): {other} and {where} share one buffer, which can't be donated twice. Copy one, with "
                "jnp.copy.",
            )


def keys_decide(case: Case) -> None:
    """The same key gives the same weights and actions, another key others, and no key is used twice."""
    agent, timestep = case.agent, example_timestep(case.environment, ACTORS)
    again, other = (agent.init_learner(jax.random.PRNGKey(seed)) for seed in (0, 1))
    _want(
        _equal(case.learner, again), "init_learner(): the same key gave two different states. Draw from the key only."
    )
    _want(not _equal(case.learner, other), "init_learner(): two keys gave the same state. Initialise with the key.")
    act, params = jax.jit(agent.act), agent.actor_params(case.learner)

    def actions(seed: int) -> Any:
        state, taken = agent.init_actor(jax.random.PRNGKey(seed), Fleet(0, 1, ACTORS)), []
        for _ in range(5):
            output, state = act(params, state, timestep)
            taken.append(np.asarray(output.action))
        return np.stack(taken)

    first, same, different = actions(0), actions(0), actions(1)
    _want(np.array_equal(first, same), "act(): the same key gave different actions. Draw from the state's key only.")
    if np.array_equal(first, different):
        raise ValueError("act(): two keys gave the same actions: it doesn't explore. Draw from the state's key.")
    _want(
        not all(np.array_equal(first[0], later) for later in first[1:]),
        "act(): five steps drew the same numbers. Split the key, and return the other half in the state.",
    )


def nothing_is_traced_twice(case: Case) -> None:
    """Further calls of act, act_greedily and update use the compiled function of the first."""
    agent, params = case.agent, case.agent.actor_params(case.learner)
    rng = np.random.default_rng(0)
    batches = [case.batch(seed=seed) for seed in range(3)]
    for name in ("act", "act_greedily", "update"):
        traces: list[None] = []

        def counted(*arguments: Any, name: str = name, traces: list[None] = traces) -> Any:
            traces.append(None)
            return getattr(agent, name)(*arguments)

        function = jax.jit(counted)
        if name == "update":
            state: Any = case.learner
            for batch in batches:
                state, _ = function(state, batch)
        else:
            state = agent.init_actor(jax.random.PRNGKey(0), Fleet(0, 1, ACTORS))
            for _ in range(3):
                timestep = example_timestep(case.environment, ACTORS)
                timestep = timestep._replace(observation=random_observation(rng, case.environment, ACTORS))
                _, state = function(params, state, timestep)
        _want(
            len(traces) == 1,
            f"{name}() was traced {len(traces)} times in three calls, want once. Keep shapes and dtypes of the state.",
        )


def loss_falls(case: Case) -> None:
    """Updates on one batch make its loss, metrics["total"], smaller."""
    state, batch, losses = case.learner, jax.device_put(case.batch()), []
    for _ in range(UPDATES):
        state, update = case.update(state, batch)
        losses.append(float(update.metrics["total"]))
        start, end = np.mean(losses[:5]), np.mean(losses[-5:])
        if len(losses) >= 10 and start - end > 0.1 * abs(start):
            break
    _want(
        bool(np.isfinite(losses).all() and end < start),
        f'update(): the loss metrics["total"] went from {start:.4g} to {end:.4g} in {len(losses)} updates on one '
        "batch; it must fall. Look at the sign of the loss, and at the learning rate.",
    )


def checkpoints_hold_everything(case: Case) -> None:
    """A learner's and an actor's state that Orbax saved and restored give the same next update and actions."""
    agent, batch = case.agent, case.batch()
    learner, _ = case.update(case.learner, batch)
    act, params = jax.jit(agent.act), agent.actor_params(case.learner)
    timestep = example_timestep(case.environment, ACTORS)
    _, actor = act(params, agent.init_actor(jax.random.PRNGKey(0), Fleet(0, 1, ACTORS)), timestep)
    state = {"learner": learner, "actor": actor}
    with tempfile.TemporaryDirectory() as directory, ocp.StandardCheckpointer() as checkpointer:
        path = Path(directory) / "state"
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(path, jax.tree.map(np.asarray, state))
    _want(_equal(state, restored), "The learner's or actor's state came back from its checkpoint with other numbers.")
    _want(
        _equal(case.update(learner, batch), case.update(restored["learner"], batch)),
        "update() after a restart differs from that without one. Keep everything that it uses in the state.",
    )
    _want(
        _equal(act(params, actor, timestep), act(params, restored["actor"], timestep)),
        "act() after a restart differs from that without one. Keep everything that it uses in the state.",
    )


def limits_are_no_deaths(case: Case) -> None:
    """A truncated episode is not learned from as a terminated one."""
    death, limit = (_ending(case, terminated=terminated) for terminated in (True, False))
    _want(
        not _equal(case.learn(death), case.learn(limit)),
        "update() is the same whether an episode terminated or was truncated. After a termination the next value is 0; "
        "after a truncation the value of the episode's last observation counts: see agents.sequences.",
    )


def invalid_rows_say_nothing(case: Case) -> None:
    """What stands in rows that aren't valid, or in the last row beside its observation, doesn't reach an update."""
    steps = _ending(case, terminated=False)
    end = case.agent.replay.burn_in + 1  # the episode's last observation; all after it is padding
    changed = jax.tree.map(np.copy, steps)
    for leaf in jax.tree.leaves(changed._replace(valid=None, first=None, observation=None, extras=None)):
        leaf[end:] = ~leaf[end:] if leaf.dtype == bool else leaf[end:] + 1
    # What act() said of the episode's last observation, a value for instance, may be used as that observation may.
    for leaf in jax.tree.leaves((changed.observation, changed.extras)):
        leaf[end + 1 :] = ~leaf[end + 1 :] if leaf.dtype == bool else leaf[end + 1 :] + 1
    _want_same(case, steps, changed, "what stands in rows that aren't valid")
    full = case.batch(ends=False).steps
    changed = jax.tree.map(np.copy, full)
    for leaf in jax.tree.leaves(changed._replace(valid=None, first=None, observation=None)):
        leaf[-1] = ~leaf[-1] if leaf.dtype == bool else leaf[-1] + 1
    _want_same(case, full, changed, "what stands in the last row beside its observation")
    changed = jax.tree.map(np.copy, full)
    changed.reward[case.agent.replay.burn_in] += 1
    _want(not _equal(case.learn(full), case.learn(changed)), "update() doesn't depend on the rewards of valid rows.")


CHECKS: tuple[Callable[[Case], None], ...] = (
    signatures_fit,
    states_are_arrays,
    keys_decide,
    nothing_is_traced_twice,
    loss_falls,
    checkpoints_hold_everything,
    limits_are_no_deaths,
    invalid_rows_say_nothing,
    episodes_are_apart,
    priorities_are_usable,
    arguments_decide,
)


def run_checks(agent: Agent, environment: EnvironmentSpec) -> list[Verdict]:
    """Runs all checks; later ones are tried even where earlier ones fail."""
    case, verdicts = Case(agent, environment), []
    for check in CHECKS:
        message = ""
        try:
            check(case)
        except Exception as error:  # an agent under test may raise anything
            message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        verdicts.append(Verdict(check=check.__name__, passed=not message, message=message))
    return verdicts


def _ending(case: Case, *, terminated: bool) -> Steps:
    """Rows whose episodes end with the first row that is trained on, and nothing but padding after them."""
    steps: Steps = jax.tree.map(np.copy, case.batch(ends=False).steps)
    row = case.agent.replay.burn_in
    (steps.terminated if terminated else steps.truncated)[row] = True
    steps.valid[row + 1 :] = False
    return steps


def _equal(one: Tree, other: Tree) -> bool:
    return all(
        np.array_equal(np.asarray(a), np.asarray(b), equal_nan=False)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def _want(held: bool, message: str) -> None:
    if not held:
        raise ValueError(message)


def _want_same(case: Case, steps: Steps, changed: Steps, what: str) -> None:
    one, other = case.learn(steps), case.learn(changed)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree_util.tree_leaves(other), strict=True):
        _want(
            bool(jnp.allclose(a, b, rtol=1e-6, atol=1e-7)),
            f"update(){jax.tree_util.keystr(path)} depends on {what}. Mask it: see agents.sequences.",
        )


def main(arguments: Sequence[str]) -> None:
    """Checks an agent at its config's defaults."""
    logging.set_verbosity(logging.WARNING)  # Orbax says a lot
    if len(arguments) != 2:
        raise app.UsageError(
            "Name one agent: one of the registry, or an import path as my_package.my_agent:make_agent."
        )
    try:
        make_agent, config = resolve(arguments[1]), config_type(arguments[1])
        agent = make_agent(config(), EXAMPLES[flags.FLAGS.environment])
    except ValueError as error:
        sys.exit(str(error))
    verdicts = run_checks(agent, EXAMPLES[flags.FLAGS.environment])
    for verdict, check in zip(verdicts, CHECKS, strict=True):
        print(f"{'right' if verdict.passed else 'WRONG'}  {(check.__doc__ or '').splitlines()[0]}")
        if verdict.message:
            print(f"       {verdict.message}")
    wrong = sum(not verdict.passed for verdict in verdicts)
    print(f"{arguments[1]}, {flags.FLAGS.environment}: {len(verdicts) - wrong} of {len(verdicts)} checks hold")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    flags.DEFINE_enum("environment", "vector", list(EXAMPLES), "What the agent is made for.")
    app.run(main)
