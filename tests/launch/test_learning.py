"""Every agent learns through the real program, and a learner that can't learn doesn't."""

from pathlib import Path

import pytest

from tests.launch.programs import run_program

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("config", "target"),
    [
        ("apex_cartpole", 475.0),
        ("impala_cartpole", 475.0),
        ("ppo_cartpole", 475.0),
        ("r2d2_cartpole", 475.0),
        ("apex_catch", 0.95),
        ("impala_catch", 0.95),
        ("ppo_catch", 0.95),
        ("r2d2_catch", 0.95),
    ],
)
def test_it_learns(config: str, target: float, tmp_path: Path) -> None:
    done = run_program(config, tmp_path, "run.seconds=110", timeout=240)
    assert done.code == 0, done.output
    assert f"target return {target:g} reached by 3 evaluations in a row" in done.output, done.output
    state = done.status["state"]
    assert state["evaluation"]["mean"] >= target
    # The actors explore, and still do far better than chance: 22 steps, and 2 balls of 5 missed.
    assert state["training_return"] > (100 if target > 1 else 0.3), done.output


@pytest.mark.parametrize("config", ["apex_cartpole", "impala_catch"])
def test_control_without_a_learning_rate_it_does_not(config: str, tmp_path: Path) -> None:
    done = run_program(config, tmp_path, "run.seconds=30", "agent_config.learning_rate=0", timeout=140)
    assert done.code == 0, done.output
    assert "30 seconds are over" in done.output, done.output
    assert done.status["state"]["learner_steps"] > 20, done.output  # it did all that the others do
    assert done.status["state"]["training_return"] < (100 if config == "apex_cartpole" else 0.0)
