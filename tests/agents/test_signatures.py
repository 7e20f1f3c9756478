import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.agent import Fleet
from agents.example_batches import random_batch
from agents.signature_checks import check_agent, check_leaves
from agents.signatures import example_timestep, extras_spec, state_spec, zero_batch
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from tests.agents.broken import ENVIRONMENT, apex, impala, with_output, with_update


def test_extras_are_told_without_the_batch_axis():
    assert extras_spec(impala(), ENVIRONMENT) == {"logits": ArraySpec(shape=(3,), dtype="float32")}
    number = ArraySpec(shape=(), dtype="float32")
    assert extras_spec(apex(), ENVIRONMENT) == {"q_taken": number, "q_max": number}


def test_a_stored_state_is_told_too():
    assert state_spec(impala(), ENVIRONMENT) == ()
    agent = dataclasses.replace(apex(), stored_state=lambda state: {"epsilon": state.epsilon})
    assert state_spec(agent, ENVIRONMENT) == {"epsilon": ArraySpec(shape=(), dtype="float32")}
    agent = dataclasses.replace(apex(), stored_state=lambda state: state.key)
    with pytest.raises(ValueError, match=re.escape("stored_state() has shape (2,) for 3 environments")):
        state_spec(agent, ENVIRONMENT)


def test_examples_hold_to_the_spec():
    spec = EnvironmentSpec(
        observation={
            "a": ArraySpec(shape=(2,), dtype="uint8", minimum=3, maximum=9),
            "b": ArraySpec(shape=(), dtype="bool"),
        },
        action=DiscreteAction(count=3),
    )
    timestep = example_timestep(spec, 5)
    assert timestep.observation["a"].tolist() == [[3, 3]] * 5
    assert (timestep.observation["b"].shape, timestep.observation["b"].dtype) == ((5,), bool)
    batch = zero_batch(impala(), ENVIRONMENT, 6)
    assert batch.steps.observation.shape == (21, 6, 4)
    assert batch.steps.extras["logits"].shape == (21, 6, 3)
    assert batch.info.items.shape == (6,)


def test_random_batches_are_what_actors_write():
    agent = impala()
    params = agent.actor_params(agent.init_learner(jax.random.PRNGKey(0)))
    steps = random_batch(agent, ENVIRONMENT, params, batch_size=64, seed=0).steps
    ends = steps.terminated | steps.truncated
    assert not (steps.terminated & steps.truncated).any()
    assert 0.1 < ends[steps.valid].mean() < 0.3
    np.testing.assert_array_equal(steps.valid[1:], ~ends[:-1])
    np.testing.assert_array_equal(steps.first[1:], ~steps.valid[:-1])
    assert not ends[~steps.valid].any()
    assert random_batch(agent, ENVIRONMENT, params, batch_size=4, seed=0, ends=False).steps.valid.all()
    logits = jax.vmap(lambda rows: agent.act(params, agent.init_actor(jax.random.PRNGKey(0), Fleet(0, 1, 64)),
                      example_timestep(ENVIRONMENT, 64)._replace(observation=rows))[0].extras["logits"])  # fmt: skip
    np.testing.assert_allclose(logits(steps.observation), steps.extras["logits"], atol=1e-5)


@pytest.mark.parametrize("make", [impala, apex])
def test_sound_agents_pass(make):
    check_agent(make(), ENVIRONMENT)


def replay(agent, **changes):
    return dataclasses.replace(agent, replay=dataclasses.replace(agent.replay, **changes))


class Bag:
    def __init__(self, value):
        self.value = value


FAULTS = {
    "action dtype": (
        lambda: with_output(impala(), lambda output: output._replace(action=output.action.astype(jnp.uint8))),
        "act().action is uint8[3], want int32[3]",
    ),
    "action shape": (
        lambda: with_output(impala(), lambda output: output._replace(action=output.action[:, None])),
        "act().action is int32[3,1], want int32[3]",
    ),
    "extras without batch": (
        lambda: with_output(impala(), lambda output: output._replace(extras={"mean": jnp.mean(output.action)})),
        "act().extras['mean'] has shape ()",
    ),
    "extras of another kind": (
        lambda: with_output(
            impala(), lambda output: output._replace(extras={"x": output.action.astype(jnp.complex64)})
        ),
        "act().extras['x'] has dtype complex64",
    ),
    "no extras": (lambda: with_output(impala(), lambda output: output._replace(extras=None)), "Return {} for none"),
    "another answer": (lambda: with_output(impala(), lambda output: output.action), "want (ActorOutput, ActorState)"),
    "a metric with an axis": (
        lambda: with_update(
            apex(), lambda state, said: (state, said._replace(metrics={"total": 0.0, "p": said.priorities}))
        ),
        "update().metrics['p'] has shape (3,)",
    ),
    "no loss": (
        lambda: with_update(apex(), lambda state, said: (state, said._replace(metrics={}))),
        'want a dict with the loss as "total"',
    ),
    "no priorities": (
        lambda: with_update(apex(), lambda state, said: (state, said._replace(priorities=None))),
        "update().priorities is None, but the replay is prioritized",
    ),
    "one priority": (
        lambda: with_update(apex(), lambda state, said: (state, said._replace(priorities=said.metrics["total"]))),
        "update().priorities is float32[], want float32[3]",
    ),
    "another state": (
        lambda: with_update(impala(), lambda state, said: (state._replace(step=state.step.astype(jnp.float32)), said)),
        "update(): the state has at .step float32[] afterwards, want int32[] as before",
    ),
    "another structure": (
        lambda: with_update(impala(), lambda state, said: (tuple(state), said)),
        "update(): the state has the structure",
    ),
    "a state that is no pytree": (
        lambda: dataclasses.replace(impala(), init_actor=lambda key, fleet: Bag(key)),
        "of type Bag at its root, want a pytree of arrays",
    ),
    "a name in the learner's state": (
        lambda: dataclasses.replace(apex(), init_learner=lambda key: {"name": "mine", "key": key}),
        "init_learner() gives 'mine' of type str at ['name'], want a pytree of arrays",
    ),
    "wide priorities": (
        lambda: dataclasses.replace(apex(), initial_priorities=lambda steps: np.ones(3)),
        "initial_priorities() is float64[3], want float32[3]",
    ),
    "bad priorities": (
        lambda: dataclasses.replace(apex(), initial_priorities=lambda steps: np.full(3, np.nan, np.float32)),
        "want finite numbers >= 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault):
    make, said = FAULTS[fault]
    with pytest.raises(ValueError, match=re.escape(said)):
        check_agent(make(), ENVIRONMENT)


def test_priorities_are_not_asked_for_without_a_replay_that_uses_them():
    agent = with_update(replay(apex(), sampler="uniform"), lambda state, said: (state, said._replace(priorities=None)))
    check_agent(agent, ENVIRONMENT)
    assert ReplaySpec(sampler="prioritized").prioritized


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (np.zeros(2, np.float64), "float64, want 32 bits"),
        (np.zeros(2, np.int64), "int64, want 32 bits"),
        (3.0, "of type float, want an array"),
        (jax.random.key(0), "typed key, want a raw one"),
    ],
)
def test_leaves_that_do_not_travel_are_named(leaf, said):
    with pytest.raises(ValueError, match=re.escape("the state at ['x'] is") + f".*{said}"):
        check_leaves("the state", {"ok": jnp.zeros(2), "x": leaf})
