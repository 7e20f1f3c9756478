"""Experience that is too old isn't trained on; at the start none has to be."""

import threading
from pathlib import Path
from typing import Any

import pytest

from configs.overrides import apply_overrides
from configs.presets import preset
from launch import learner
from launch.assembly import assemble
from launch.policy_lag import FreshBatches
from launch.roles import Assignment
from replay.dataset import ReplayReader
from replay.variables import VariableFetcher, VariablePublisher
from tests.launch.programs import run_program
from tests.replay.shards import (
    ShardProcess,
    eventually,
    fill,
    make_replay,
    no_forkserver_left,  # noqa: F401
    running,
)


def test_batches_behind_the_bound_are_dropped_and_counted() -> None:
    plan, layout = make_replay(1, 4, queue=True, max_size=100)
    with running(plan, layout) as (shard,):
        fill(shard.address, layout, 16)  # by the weights of version 7
        reader = ReplayReader([shard.address], layout, plan, 4, samples_in_flight=4, prefetch=1)
        bounded, free = FreshBatches(reader, 2.0), FreshBatches(reader, 0.0)
        eventually(lambda: bounded.next(10, 0.5) is None and bounded.dropped == 1, 60)  # 3 steps behind
        eventually(lambda: bounded.next(9, 0.5), 60)
        assert bounded.next(10, 5.0) is None
        assert bounded.dropped == 2
        eventually(lambda: free.next(1000, 0.5), 60)
        assert free.dropped == 0
        reader.close()


@pytest.mark.parametrize(("config", "first"), [("ppo_cartpole", "update"), ("apex_cartpole", "publish")])
def test_on_policy_the_update_is_compiled_before_anybody_can_act(
    config: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    make, publish = learner.make_update, VariablePublisher.publish

    def make_update(*arguments: Any) -> Any:
        update = make(*arguments)

        def recorded(*arguments: Any) -> Any:
            result = update(*arguments)
            done.append("update")
            return result

        return recorded

    def recorded_publish(publisher: Any, tree: Any, version: int) -> None:
        done.append("publish")
        publish(publisher, tree, version)

    monkeypatch.setattr(learner, "make_update", make_update)
    monkeypatch.setattr(VariablePublisher, "publish", recorded_publish)
    experiment = apply_overrides(preset(config), ["topology.shards=1", "learner.batch_size=16"])
    parts = assemble(experiment)
    shard, stop = ShardProcess(parts.plan, parts.layout).start(), threading.Event()
    assignment = Assignment(
        role="learner", index=0, experiment=experiment, addresses=(shard.address,), run_directory=tmp_path
    )
    thread = threading.Thread(target=learner.run, args=(assignment, stop))
    fetcher = VariableFetcher(shard.address, parts.params_structure())
    try:
        thread.start()
        fetcher.start()
        eventually(lambda: fetcher.wait(1.0), 120, "the first publication")
        newest = fetcher.newest()
        assert newest is not None
        assert newest[1] == 0  # what was compiled for changed nothing
        assert done[0] == first
    finally:
        stop.set()
        thread.join(60)
        fetcher.close()
        shard.kill()


@pytest.mark.slow
def test_a_program_with_a_tight_bound_keeps_learning(tmp_path: Path) -> None:
    done = run_program(
        "ppo_cartpole", tmp_path, "learner.max_policy_lag=1", "run.learner_steps=80", "run.seconds=100", timeout=200
    )
    assert done.code == 0, done.output
    assert "80 learner steps reached" in done.output, done.output
    assert done.status["state"]["policy_lag"] <= 1.0
