"""Batches as an agent's own actors would write them, in an environment that does nothing but hold to its spec."""

from typing import Any

import jax
import numpy as np

from agents.agent import Agent, Fleet, Params, TimeStep
from agents.rows import row_of
from agents.signatures import map_observation
from replay.spec import ArraySpec, EnvironmentSpec
from replay.steps import Batch, SampleInfo, Steps

END_CHANCE = 0.1  # that a step ends its episode, for each of the two ways to end


def random_observation(rng: np.random.Generator, environment: EnvironmentSpec, environments: int) -> Any:
    """Observations [B, *obs] within the spec's bounds."""

    def draw(spec: ArraySpec) -> np.ndarray[Any, Any]:
        shape, dtype = (environments, *spec.shape), np.dtype(spec.dtype)
        if dtype.kind == "b":
            return rng.random(shape) < 0.5
        low, high = spec.minimum, spec.maximum
        if dtype.kind in "iu":
            low, high = max(low, np.iinfo(dtype).min, -100), min(high, np.iinfo(dtype).max)
            return rng.integers(int(low), int(min(high, low + 255)) + 1, shape).astype(dtype)
        return np.clip(rng.normal(size=shape), low, high).astype(dtype)

    return map_observation(environment, draw)


def random_batch(
    agent: Agent, environment: EnvironmentSpec, params: Params, *, batch_size: int, seed: int, ends: bool = True
) -> Batch:
    """A batch [L, B, ...] that the agent acted in; with episodes' ends, or with valid rows only."""
    rng = np.random.default_rng(seed)
    state = agent.init_actor(jax.random.PRNGKey(seed), Fleet(0, 1, batch_size))
    stored = () if agent.stored_state is None else agent.stored_state(state)
    act = jax.jit(agent.act)
    never = np.zeros(batch_size, bool)
    timestep = TimeStep(
        observation=random_observation(rng, environment, batch_size),
        reward=np.zeros(batch_size, np.float32),
        first=~never,
        terminated=never,
        truncated=never,
    )
    rows = []
    for _ in range(agent.replay.sequence_length):
        output, state = act(params, state, timestep)
        over = timestep.terminated | timestep.truncated
        chance = rng.random(batch_size) if ends else np.ones(batch_size)
        following = TimeStep(
            observation=random_observation(rng, environment, batch_size),
            reward=np.where(over, 0, rng.normal(size=batch_size)).astype(np.float32),
            first=over,
            terminated=~over & (chance < END_CHANCE),
            truncated=~over & (chance > 1 - END_CHANCE) & ends,
        )
        rows.append(row_of(timestep, output, following, np.zeros(batch_size, np.int32)))
        timestep = following
    steps: Steps = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    info = SampleInfo(
        probability=rng.uniform(0.001, 0.01, batch_size).astype(np.float32),
        correction=np.ones(batch_size, np.float32),
        items=np.full(batch_size, 1000, np.int32),
    )
    return Batch(steps, jax.tree.map(np.asarray, stored), info)
