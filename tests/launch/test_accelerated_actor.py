"""The accelerated actor against a real shard: every environment's stream comes out whole, and the program learns."""

import dataclasses
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from agents.agent import Fleet
from agents.exploration import epsilon_ladder
from configs.experiment import Experiment
from configs.overrides import apply_overrides
from configs.presets import preset
from launch import accelerated_actor, actor
from launch.assembly import Parts, assemble, key_of
from launch.child import resolve
from launch.environments.factory import make_environments
from launch.roles import FUNCTIONS, Assignment
from replay.metrics import MetricsReader
from replay.steps import Steps
from replay.variables import VariablePublisher
from tests.launch.environments.corridor import GymnasiumCorridor
from tests.launch.programs import learning, run_program, wait_for_state
from tests.replay import servers
from tests.replay.shards import ShardProcess, eventually, no_forkserver_left  # noqa: F401
from tests.replay.streams import map_rows

THREADS, ENVIRONMENTS = 2, 6
LIMIT = "environment.options.max_episode_steps=25"
SETTINGS = (
    "topology.actors=0", "topology.accelerated_actors=1", "topology.shards=1", f"accelerated.threads={THREADS}",
    f"accelerated.environments={ENVIRONMENTS}", "accelerated.batch_size=2", "accelerated.environment_threads=2",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Written:
    """What one run of the actor left in its shard."""

    experiment: Experiment
    parts: Parts
    params: Any
    items: list[tuple[Steps, Any, float]]  # rows [L, ...], the state beside them, the priority
    values: list[dict[str, Any]]  # of the metrics records


def act_for_a_while(
    config: str, directory: Path, items: int, *overrides: str, role: str = "accelerated_actor", version: int = 3
) -> Written:
    """Runs the role against a shard until it holds so many items; the weights are those of a fresh learner."""
    experiment = apply_overrides(preset(config), [*SETTINGS, *overrides])
    parts = assemble(experiment)
    plan = dataclasses.replace(parts.plan, queue=True, max_size=100_000, min_size=1, samples_per_insert=1.0)
    shard = ShardProcess(plan, parts.layout).start()
    params = parts.agent.actor_params(parts.agent.init_learner(key_of(5)))
    publisher = VariablePublisher([shard.address])
    stop, failures = threading.Event(), []
    assignment = Assignment(
        role=role, index=0, experiment=experiment, addresses=(shard.address,), run_directory=directory
    )

    def play() -> None:
        try:
            resolve(FUNCTIONS[role])(assignment, stop)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=play)
    try:
        publisher.publish(params, version)
        thread.start()
        eventually(lambda: failures or servers.size(shard.address) >= items, 120, f"{items} items")
        stop.set()
        thread.join(30)
        assert not failures, failures
        assert not thread.is_alive()
        reader = MetricsReader([shard.address])
        values = [dict(record.values) for _ in range(20) for record in reader.read(timeout_s=0.2)]
        reader.close(timeout=1.0)
        raw = servers.read(shard.address, servers.size(shard.address))
    finally:
        stop.set()
        publisher.close(timeout=1.0)
        shard.kill()
    columns = {name: np.concatenate([each[name] for _, each in raw]) for name in raw[0][1]}
    steps, state = parts.layout.assemble(parts.layout.unpack(columns))
    steps, state = map_rows(np.asarray, steps), jax.tree.map(np.asarray, state)
    found = [
        (
            map_rows(lambda leaf, i=i: leaf[:, i], steps),
            jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], state),
            float(info.priority),
        )
        for i, (info, _) in enumerate(raw)
    ]
    return Written(experiment, parts, params, found, values)


def replay_in_step(written: Written, thread: int) -> Iterator[tuple[int, int, Steps, Any, float]]:
    """Steps the thread's environments again, all at once, with the actions that were stored.

    Gives (environment, number) of every item and the item itself, after every one of its first rows has been compared.
    """
    experiment, period = written.experiment, written.parts.agent.replay.period
    environments = make_environments(
        experiment.environment, ENVIRONMENTS, (experiment.run.seed, accelerated_actor.ACCELERATED_STREAM, 0, thread, 3)
    )
    begins: dict[bytes, list[tuple[Steps, Any, float]]] = {}
    for item in written.items:
        if (item[0].first & ~item[0].valid).any():
            continue  # padded when the streams were cut at the end
        begins.setdefault(item[0].observation[0].tobytes(), []).append(item)
    timestep, number = environments.reset(), 0
    while all(len(begins.get(each.tobytes(), ())) == 1 for each in timestep.observation):
        block = [begins[each.tobytes()][0] for each in timestep.observation]
        for row in range(period):
            stored = [steps for steps, _, _ in block]
            seen = [np.array_equal(timestep.observation[i], each.observation[row]) for i, each in enumerate(stored)]
            assert all(seen), f"environment {seen.index(False)}, row {number * period + row}"
            np.testing.assert_array_equal(timestep.first, [each.first[row] for each in stored])
            np.testing.assert_array_equal(
                ~(timestep.terminated | timestep.truncated), [each.valid[row] for each in stored]
            )
            assert all(each.version[row] == 3 for each in stored)
            timestep = environments.step(np.asarray([each.action[row] for each in stored]))
            for name in ("reward", "terminated", "truncated"):
                want = getattr(timestep, name)
                np.testing.assert_array_equal(want, [getattr(each, name)[row] for each in stored])
        yield from ((i, number, *item) for i, item in enumerate(block))
        number += 1
    environments.close()


def test_each_environments_rows_are_those_of_a_synchronous_run(tmp_path: Path) -> None:
    written = act_for_a_while(
        "ppo_cartpole", tmp_path, 400, LIMIT, "agent_config.replay.trace=8", "agent_config.replay.period=8"
    )
    compared = [list(replay_in_step(written, thread)) for thread in range(THREADS)]
    least = min(len(each) // ENVIRONMENTS for each in compared)
    assert least >= 10  # sequences of every environment
    assert sum(len(each) for each in compared) > len(written.items) / 2  # the rest is of those that were ahead
    rows = [steps for each in compared for _, _, steps, _, _ in each]
    assert all(any(getattr(steps, name).any() for steps in rows) for name in ("first", "terminated", "truncated"))
    last = max(
        (values for values in written.values if "environment_steps" in values), key=lambda v: v["environment_steps"]
    )
    assert last["environment_steps"] > 8 * 400 / 2
    assert {"seconds_waiting", "seconds_environments", "seconds_device", "items_lost"} <= last.keys()
    returns = [episode[0] for values in written.values for episode in values.get("episodes", ())]
    assert returns
    assert max(returns) == 25.0  # the limit, and a reward of one a step: no two environments' rewards are summed up


def test_recurrent_state_and_priorities_are_each_environments_own(tmp_path: Path) -> None:
    written = act_for_a_while("r2d2_cartpole", tmp_path, 400, LIMIT)
    agent = written.parts.agent
    assert agent.stored_state is not None
    assert agent.initial_priorities is not None
    unroll = jax.jit(agent.act)
    items = list(replay_in_step(written, 0))
    assert len(items) // ENVIRONMENTS >= 5
    states: list[Any] = [None] * ENVIRONMENTS
    for environment, number, steps, stored, priority in items:
        if number == 0:
            states[environment] = agent.init_actor(key_of(0), Fleet(0, 1, 1))
        state = states[environment]
        jax.tree.map(
            lambda want, got: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5),
            agent.stored_state(state), stored,
        )  # fmt: skip
        batch = map_rows(lambda leaf: leaf[:, None], steps)
        np.testing.assert_allclose(priority, agent.initial_priorities(batch)[0], rtol=1e-4)
        for row in range(agent.replay.period):
            state = follow(agent, unroll, written.params, state, steps, row)
        states[environment] = state
    memories = [np.asarray(jax.tree_util.tree_leaves(state.stored.memory)[0]) for state in states]
    assert not np.allclose(memories[0], memories[1])  # control: they do differ


def follow(agent: Any, act: Any, params: Any, state: Any, steps: Steps, row: int) -> Any:
    """The actor's state after the action that was stored, instead of one that it would draw."""
    timestep = actor_timestep(steps, row)
    _, after = act(params, state, timestep)
    return after._replace(stored=after.stored._replace(action=np.asarray(steps.action[row : row + 1], np.int32)))


def actor_timestep(steps: Steps, row: int) -> Any:
    from agents.agent import TimeStep

    flags = np.zeros(1, bool)
    return TimeStep(
        steps.observation[row : row + 1], steps.extras["previous_reward"][row : row + 1], steps.first[row : row + 1],
        flags, flags,
    )  # fmt: skip


class Breaking(GymnasiumCorridor):
    """A corridor that breaks at its tenth step."""

    taken = 0

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == 10:
            raise OSError("the corridor broke")
        return super().step(action)


def test_an_environment_that_fails_ends_the_role_by_its_own_error(tmp_path: Path) -> None:
    broken = f"environment.name={__name__}:Breaking"
    with pytest.raises(AssertionError, match="the corridor broke"):
        act_for_a_while("impala_cartpole", tmp_path, 400, "environment.library=gymnasium", broken)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["actor", "accelerated_actor"])
def test_an_actor_that_is_started_again_meets_other_episodes(role: str, tmp_path: Path) -> None:
    settings = ("topology.actors=1", "agent_config.replay.trace=8", "agent_config.replay.period=8")

    def beginnings(version: int) -> set[bytes]:
        written = act_for_a_while("ppo_cartpole", tmp_path, 60, *settings, role=role, version=version)
        return {steps.observation[0].tobytes() for steps, _, _ in written.items if steps.first[0]}

    first, same, later = beginnings(0), beginnings(0), beginnings(1)
    assert first & same  # control: the seed decides
    assert not first & later


def test_one_ladder_covers_both_kinds_of_actor() -> None:
    experiment = apply_overrides(
        preset("apex_cartpole"),
        ["topology.actors=2", "environment.per_actor=3", "topology.accelerated_actors=2", "accelerated.environments=4"],
    )
    fleets = [actor.fleet_of(experiment, index) for index in range(2)]
    fleets += [accelerated_actor.fleet_of(experiment, index, thread) for index in range(2) for thread in range(2)]
    ladder = np.concatenate([epsilon_ladder(fleet, 0.4, 7.0) for fleet in fleets])
    np.testing.assert_allclose(ladder, epsilon_ladder(Fleet(0, 1, 22), 0.4, 7.0), rtol=1e-6)


@pytest.mark.slow
def test_a_program_with_an_accelerated_actor_learns(tmp_path: Path) -> None:
    done = run_program(
        "sebulba_cartpole", tmp_path, "devices.actor=0", "devices.learner=1,2", "accelerated.threads=2",
        "accelerated.environments=8", "accelerated.batch_size=4", "run.seconds=110", timeout=240,
    )  # fmt: skip
    assert done.code == 0, done.output
    assert "target return 475 reached by 3 evaluations in a row" in done.output, done.output
    assert done.status["state"]["counts"]["accelerated_actor.items_lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("config", ["apex_cartpole", "r2d2_cartpole", "impala_cartpole"])
def test_both_kinds_of_actor_feed_one_learner(config: str, tmp_path: Path) -> None:
    def fed(state: dict[str, Any]) -> bool:
        items = [state["counts"].get(f"{kind}.items_created", 0) for kind in ("actor", "accelerated_actor")]
        return bool(min(items) > 0 and state["learner_steps"] >= 60)

    overrides = ("topology.actors=1", "topology.accelerated_actors=1", "run.target_evaluations=1000")
    with learning(tmp_path, config, *overrides) as (process, run):
        wait_for_state(run / "status.json", process, fed)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert "failed" not in (tmp_path / "output.txt").read_text()
