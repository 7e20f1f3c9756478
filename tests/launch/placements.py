"""One update of each agent on a batch that is the same wherever it is computed.

python -m tests.launch.placements RANK PROCESSES DIRECTORY   # one of several processes, with what is given there
"""

import functools
import pickle
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from agents.apex_dqn.config import ApexConfig
from agents.data_parallel import AXIS
from agents.example_batches import random_batch
from agents.impala.config import ImpalaConfig
from agents.ppo.config import PpoConfig
from agents.r2d2.config import R2d2Config
from agents.registry import resolve
from agents.signatures import extras_spec, state_spec
from launch.assembly import Parts, key_of
from launch.learner import replicate, shardings_of
from launch.learner_group import LearnerGroup
from launch.update_program import compile_update
from replay.layout import ROWS, STATE, make_layout
from replay.placing import Placer, own_rows
from replay.plan import plan_shard
from replay.spec import ArraySpec, DiscreteAction, EnvironmentSpec, ReplaySpec
from replay.steps import Array, Batch, SampleInfo

ENVIRONMENT = EnvironmentSpec(observation=ArraySpec(shape=(3,), dtype="float32"), action=DiscreteAction(count=2))
BATCH = 16  # sequences, in all
WIDTH = BATCH  # of every layer: once, XLA took a layer that is as wide as the batch for a part of it
UPDATES = 3
# A third of the time to compile, and the same collectives: they are put in before.
FAST = {"xla_llvm_disable_expensive_passes": True, "xla_backend_optimization_level": 0}
QUEUE = ReplaySpec(queue=True, trace=4, n_step=1, period=4, max_size=64)
TABLE = ReplaySpec(trace=1, n_step=3, period=1, sampler="prioritized", max_size=64, min_size=1)
SEQUENCES = ReplaySpec(trace=4, burn_in=2, n_step=2, period=2, sampler="prioritized", max_size=64, min_size=1)
CONFIGS = {
    "apex_dqn": ApexConfig(replay=TABLE, hidden_sizes=(WIDTH,), head_size=WIDTH, target_period=2, learning_rate=1e-2),
    "impala": ImpalaConfig(replay=QUEUE, hidden_sizes=(WIDTH,), learning_rate=1e-2),
    "ppo": PpoConfig(replay=QUEUE, hidden_sizes=(WIDTH,), epochs=2, minibatches=2, learning_rate=1e-2),
    "r2d2": R2d2Config(
        replay=SEQUENCES, hidden_sizes=(WIDTH,), lstm_size=WIDTH, head_size=WIDTH, target_period=2, learning_rate=1e-2
    ),
}


class Given(NamedTuple):
    """A learner's first state, and batches as they come out of replay."""

    state: Any
    batches: list[tuple[dict[str, Array], SampleInfo]]


def parts_of(name: str) -> Parts:
    """A small agent and its replay."""
    agent = resolve(name)(CONFIGS[name], ENVIRONMENT)
    layout = make_layout(agent.replay, ENVIRONMENT, extras_spec(agent, ENVIRONMENT), state_spec(agent, ENVIRONMENT))
    return Parts(agent=agent, environment=ENVIRONMENT, layout=layout, plan=plan_shard(agent.replay, 1, BATCH, 1))


def columns_of(parts: Parts, batch: Batch) -> dict[str, Array]:
    """A batch as it comes out of replay: every item's packed units."""
    layout = parts.layout
    rows = np.zeros((BATCH, layout.spec.sequence_length), layout.row_dtype)
    values = {**batch.steps._asdict(), **{f"extras/{name}": leaf for name, leaf in batch.steps.extras.items()}}
    for field in layout.fields:
        rows[field.name] = np.swapaxes(values[field.name], 0, 1)
    units = [rows[:, unit * layout.new_rows :][:, : layout.unit_rows] for unit in range(layout.units)]
    columns = {ROWS: np.stack(units, axis=1)[..., None].view(np.uint8)}
    if layout.state:
        state = np.zeros(BATCH, layout.state_dtype)
        for field, leaf in zip(layout.state, jax.tree.leaves(batch.state), strict=True):
            state[field.name] = leaf
        columns[STATE] = state[:, None, None].view(np.uint8)
    return columns


@functools.cache
def given(name: str) -> Given:
    """What an agent's updates are made of, on the host."""
    parts = parts_of(name)
    state: Any = jax.jit(parts.agent.init_learner)(key_of(0))
    params = parts.agent.actor_params(state)
    drawn = (random_batch(parts.agent, ENVIRONMENT, params, batch_size=BATCH, seed=seed) for seed in range(UPDATES))
    batches = [(columns_of(parts, batch), batch.info) for batch in drawn]
    return Given(jax.tree.map(np.asarray, state), batches)


def learn(name: str, what: Given, mesh: Mesh, rank: int = 0, processes: int = 1) -> tuple[dict[str, Array], str]:
    """An update with this process's part of each batch: all leaves of the state, and the part's priorities.

    Also the text of the compiled program.
    """
    state, batches = placed(what, mesh, rank, processes)
    update, results = compile_update(parts_of(name), mesh, BATCH, options=FAST), {}
    for step, batch in enumerate(batches):
        state, metrics, (priorities,) = update(state, batch)
        results[f"total/{step}"] = np.asarray(metrics["total"])
        if priorities is not None:
            results[f"priorities/{step}"] = own_rows(priorities)
    return results | leaves_of(state), update.as_text()


def learn_at_once(name: str, what: Given, mesh: Mesh) -> dict[str, Array]:
    """The same in one call, without the losses."""
    state, batches = placed(what, mesh, 0, 1)
    state, _, priorities = compile_update(parts_of(name), mesh, BATCH, UPDATES, FAST)(state, *batches)
    results = {f"priorities/{step}": own_rows(each) for step, each in enumerate(priorities) if each is not None}
    return results | leaves_of(state)


def placed(what: Given, mesh: Mesh, rank: int, processes: int) -> tuple[Any, list[Any]]:
    """The first state and a process's parts of the batches, on the devices."""
    replicated, split = shardings_of(mesh)
    place = Placer(split).place
    share = slice(rank * BATCH // processes, (rank + 1) * BATCH // processes)
    batches = []
    for columns, info in what.batches:
        arrays = {key: place(np.ascontiguousarray(column[share])) for key, column in columns.items()}
        batches.append((arrays, SampleInfo(*(place(leaf[share]) for leaf in info))))
    return jax.tree.map(lambda leaf: replicate(leaf, replicated), what.state), batches


def leaves_of(state: Any) -> dict[str, Array]:
    """By their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {f"state{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}


def main() -> None:
    rank, processes, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    group = LearnerGroup(rank, processes, threading.Event())
    assert group.join()
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    assert mesh.size == processes * jax.local_device_count()
    for name, what in pickle.loads((directory / "given").read_bytes()).items():
        np.savez(directory / f"{name}-{rank}.npz", **learn(name, what, mesh, rank, processes)[0])
    group.leave()


if __name__ == "__main__":
    main()
