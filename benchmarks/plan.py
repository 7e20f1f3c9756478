"""Whether launch.plan's forecast comes true: programs of several processes on this machine, predicted from what their
parts cost when each works alone, and then run.
"""

import os
from collections.abc import Sequence

from absl import app, flags

from benchmarks.programs import rates_of
from configs.overrides import apply_overrides
from configs.presets import preset
from launch.assembly import assemble
from launch.cost_model import on_one_machine, setting_of
from launch.rehearsal import rehearse

# What is predicted differs from what is measured, one shard and one actor, in how many there are of each.
CASES = (
    ("impala_pong", ("topology.evaluators=0",)),
    ("impala_pong", ("topology.evaluators=0", "topology.shards=2", "topology.actors=3")),
    ("apex_pong", ("topology.evaluators=0", "learner.threads=1", "agent_config.replay.min_size=2000")),
    ("apex_cartpole", ("topology.evaluators=0", "topology.shards=2", "topology.actors=3")),
    ("r2d2_cartpole", ("topology.evaluators=0",)),
)


def main(argv: Sequence[str]) -> None:
    """Predicts, runs, compares."""
    del argv
    print(f"{'':<16}{'environment steps/s':>28}{'learner steps/s':>26}")
    columns = f"{'forecast':>10}{'measured':>10}{'ratio':>8}"
    print(f"{'config':<16}{columns}{columns}  fields")
    for config, overrides in CASES:
        experiment = apply_overrides(preset(config), overrides)
        setting = setting_of(experiment, assemble(experiment).plan)
        costs = rehearse(config, overrides)
        forecast = on_one_machine(setting, costs, len(os.sched_getaffinity(0)))
        measured = rates_of(config, overrides, flags.FLAGS.seconds)
        line = f"{config:<16}"
        for name, width in (("environment_steps", 0), ("learner_steps", 1)):
            predicted, real = getattr(forecast.rates, name), getattr(measured, name)
            line += f"{predicted:>10,.{width}f}{real:>10,.{width}f}{predicted / real:>8.2f}"
        print(f"{line}  {' '.join(overrides)}; {forecast.bottleneck}", flush=True)


if __name__ == "__main__":
    flags.DEFINE_float("seconds", 30.0, "How long each program is measured.")
    app.run(main)
