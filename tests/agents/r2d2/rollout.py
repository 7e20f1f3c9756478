"""What R2D2's actors write, over many rows: sequences can begin anywhere in them."""

from typing import Any, NamedTuple

import jax
import numpy as np

from agents.agent import Agent, Fleet, TimeStep
from agents.r2d2.agent import make_agent
from agents.r2d2.config import R2d2Config
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.steps import Batch, SampleInfo, Steps

ENVIRONMENT = EnvironmentSpec(observation=ArraySpec(shape=(2,), dtype="float32"), action=DiscreteAction(count=3))
CONFIG = R2d2Config(
    replay=ReplaySpec(burn_in=4, trace=8, n_step=3, period=4, sampler="prioritized"),
    hidden_sizes=(8,),
    lstm_size=8,
    head_size=8,
    discount=0.5,
)


class Rollout(NamedTuple):
    """Rows, and the state that was there before each of them."""

    steps: Steps  # [T, B, ...]
    stored: Any  # [T, B, ...]

    def sequence(self, start: int, length: int) -> Batch:
        """The batch of the sequences that begin at a row."""
        batch = self.steps.reward.shape[1]
        info = SampleInfo(
            probability=np.full(batch, 0.01, np.float32),
            correction=np.ones(batch, np.float32),
            items=np.full(batch, 100, np.int32),
        )
        cut = jax.tree.map(lambda leaf: leaf[start : start + length], self.steps)
        return Batch(cut, jax.tree.map(lambda leaf: leaf[start], self.stored), info)


def make(config: R2d2Config = CONFIG) -> Agent:
    return make_agent(config, ENVIRONMENT)


def roll(agent: Agent, params: Any, *, length: int, environments: int, end_chance: float = 0.1) -> Rollout:
    """Random observations and rewards; a row ends its episode with the chance given, half of them by a limit."""
    rng = np.random.default_rng(0)
    act, state = jax.jit(agent.act), agent.init_actor(jax.random.PRNGKey(1), Fleet(0, 1, environments))
    assert agent.stored_state is not None

    def observe(reward: Any, first: Any, terminated: Any, truncated: Any) -> TimeStep:
        observation = rng.normal(size=(environments, 2)).astype(np.float32)
        return TimeStep(observation, reward, first, terminated, truncated)

    no = np.zeros(environments, bool)
    timestep, rows, stored = observe(np.zeros(environments, np.float32), ~no, no, no), [], []
    for _ in range(length):
        stored.append(jax.tree.map(np.asarray, agent.stored_state(state)))
        output, state = act(params, state, timestep)
        over, chance = timestep.terminated | timestep.truncated, rng.random(environments)
        reward = np.where(over, 0, 3 * rng.normal(size=environments)).astype(np.float32)
        terminated, truncated = ~over & (chance < end_chance / 2), ~over & (chance > 1 - end_chance / 2)
        following = observe(reward, over, terminated, truncated)
        rows.append(
            Steps(
                observation=timestep.observation,
                action=np.asarray(output.action),
                reward=reward,
                first=timestep.first,
                terminated=terminated,
                truncated=truncated,
                valid=~over,
                version=np.zeros(environments, np.int32),
                extras={name: np.asarray(value) for name, value in output.extras.items()},
            )
        )
        timestep = following
    return Rollout(*(jax.tree.map(lambda *leaves: np.stack(leaves), *each) for each in (rows, stored)))
