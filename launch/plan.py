"""Measures what an experiment's parts cost on this machine, and says what its topology will do and what bounds it.

python -m launch.plan --config=apex_pong --set topology.shards=4 topology.actors=256
python -m launch.plan --config=impala_pong --set topology.actors=500 --environment_steps_per_second=250000
"""

import sys
from collections.abc import Sequence

import psutil
from absl import app, flags
from rich.console import Console
from rich.table import Table

from agents import collector
from configs.bounds import check_bounds
from launch import command_line, cost_model
from launch.cost_model import Costs, Forecast
from replay.plan import memory_of

USAGE = (
    "       --environment_steps_per_second=N, --learner_steps_per_second=N",
    "                     what is wanted, or what a learner on other hardware does: says what that asks of shards,",
    "                     actors and network; where replay ties the two together one of them is enough",
    "       --gigabits=G  of the network link of each process, a second and direction (10)",
    "       --cores=N     of one machine that runs it all (those of this one)",
    "       --seconds=S   how long is measured (24), after a start that takes half a minute",
    "",
    "Measured is a program in small: one shard, one actor of each kind and a learner, which take turns, so that each",
    "has the machine to itself. Run it while nothing else runs. A learner on a GPU is measured where there is one.",
)


def costs_table(costs: Costs) -> Table:
    """What was measured, for a person."""
    table = _table("measured here", ("CPU ms", "bytes", "by itself, /s"))
    for role, actor in costs.actors.items():
        name = f"{role.replace('_', ' ')}: environment step"
        table.add_row(name, f"{actor.cpu * 1e3:.3f}", "", f"{actor.rate:,.0f}")
    table.add_row("learner: learner step", f"{costs.learner_cpu * 1e3:.3f}", "", f"{costs.learner_rate:,.1f}")
    table.add_row("shard: item written", f"{costs.insert_cpu * 1e3:.3f}", f"{costs.insert_bytes:,.0f}", "")
    table.add_row("shard: item read", f"{costs.sample_cpu * 1e3:.3f}", f"{costs.sample_bytes:,.0f}", "")
    table.add_row("weights: publication", "", f"{costs.weights_bytes:,.0f}", "")
    return table


def forecast_table(forecasts: dict[str, Forecast]) -> Table:
    """One column for each forecast."""
    table = _table("", tuple(forecasts))
    each = list(forecasts.values())
    table.add_row("environment steps/s", *(f"{one.rates.environment_steps:,.0f}" for one in each))
    table.add_row("learner steps/s", *(f"{one.rates.learner_steps:,.1f}" for one in each))
    for role in each[0].loads:
        name = "shard" if role == "replay" else role.replace("_", " ")
        table.add_row(f"{name}, each: cores", *(f"{one.loads[role].cores:.2f}" for one in each))
        table.add_row("  MB/s received", *(f"{one.loads[role].received / 1e6:,.1f}" for one in each))
        table.add_row("  MB/s sent", *(f"{one.loads[role].sent / 1e6:,.1f}" for one in each))
    table.add_row(
        "shards that it takes", *("no number will do" if one.shards is None else str(one.shards) for one in each)
    )
    table.add_row("bounded by", *(one.bottleneck for one in each))
    return table


def _table(first: str, columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def main(argv: Sequence[str]) -> int:
    """Checks, measures, forecasts."""
    values = flags.FLAGS
    overrides = [*values.set, *argv[1:]]
    console = Console()
    try:
        experiment = command_line.experiment_of(values.config, overrides)
        check_bounds(experiment)
        command_line.quieten()
        with collector.held():
            from launch.assembly import assemble  # loads JAX and TensorFlow, which takes seconds
            from launch.rehearsal import rehearse

        parts = assemble(experiment)
        setting = cost_model.setting_of(experiment, parts.plan)
        costs = rehearse(values.config, overrides, values.seconds, say=lambda line: console.print(line, style="dim"))
    except (ValueError, ImportError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError | ImportError) else 1
    link = values.gigabits * 1e9 / 8
    forecasts = {
        f"on {values.cores} cores together": cost_model.on_one_machine(setting, costs, values.cores),
        "each process on its own cores": cost_model.on_own_cores(setting, costs, link),
    }
    wanted = values.environment_steps_per_second, values.learner_steps_per_second
    if any(wanted):
        forecasts["at the rates asked for"] = cost_model.at(
            setting, costs, cost_model.completed(setting, costs, *wanted), link
        )
    console.print(costs_table(costs))
    console.print()
    console.print(forecast_table(forecasts))
    memory = memory_of(parts.agent.replay, parts.layout, setting.shards) / setting.shards
    console.print(f"A shard's full tables take {memory / 2**20:,.0f} MiB before compression.", highlight=False)
    return 0


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(command_line.help_text("launch.plan", __doc__, USAGE))
        sys.exit(0)
    command_line.define_flags()
    flags.DEFINE_float("environment_steps_per_second", 0.0, "Of all actors together.", lower_bound=0.0)
    flags.DEFINE_float("learner_steps_per_second", 0.0, "Of the learner.", lower_bound=0.0)
    flags.DEFINE_float("gigabits", 10.0, "Of each process's link, a second and direction.", lower_bound=0.001)
    flags.DEFINE_integer("cores", len(psutil.Process().cpu_affinity()), "Of one machine.", lower_bound=1)
    flags.DEFINE_float("seconds", 24.0, "How long is measured.", lower_bound=3.0)
    app.run(main, flags_parser=command_line.parse)
