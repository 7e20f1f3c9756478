"""How long the learner waits for data when replay is full and it trains as fast as it can."""

import time
from typing import NamedTuple

from absl import app, flags

from benchmarks.programs import Running, program

OVERRIDES = (
    "run.target_return=inf",
    "agent_config.replay.samples_per_insert=0",  # free running: nobody waits for a ratio
    "agent_config.replay.max_size=4000",  # full soon
    "agent_config.replay.min_size=2000",
    "topology.actors=1",
    "topology.evaluators=0",
)
# A batch of images takes many times longer to train on than to read. One of 64 poles takes less CPU time to train on
# than Reverb needs to hand out its items, which shows what reading costs once two cores have nothing left.
CONFIGS = ("apex_pong", "apex_cartpole")


class Figures(NamedTuple):
    """Over the measured time."""

    waiting: float  # share of the learner's time
    learner_steps: float  # a second
    environment_steps: float  # a second
    fill: float  # of the emptiest shard when it began


def measure(config: str, seconds: float = 30.0) -> Figures:
    """Runs a preset until its tables are full, then measures."""
    with program(config, OVERRIDES) as running:
        running.wait_for("learner-0", "First learner step done")
        while (fill := _fill(running)) < 1.0:
            time.sleep(0.5)
        first = running.status()
        time.sleep(seconds)
        last = running.status()
    passed = last["time"] - first["time"]
    waited = last["state"]["counts"]["learner.seconds_waiting"] - first["state"]["counts"]["learner.seconds_waiting"]
    learner, environment = (
        (last["state"][name] - first["state"][name]) / passed for name in ("learner_steps", "environment_steps")
    )
    return Figures(waited / passed, learner, environment, fill)


def _fill(running: Running) -> float:
    shards = running.status().get("state", {}).get("shards", [])
    return min((shard["size"] / shard["max_size"] for shard in shards if shard["max_size"]), default=0.0)


def main(_: list[str]) -> None:
    for config in CONFIGS:
        figures = measure(config, flags.FLAGS.seconds)
        print(
            f"{config:<14} waits {figures.waiting:.2%} of its time at {figures.learner_steps:.0f} learner steps/s and "
            f"{figures.environment_steps:.0f} environment steps/s"
        )


if __name__ == "__main__":
    flags.DEFINE_float("seconds", 30.0, "How long is measured.")
    app.run(main)
