"""A run as an sbatch script: one task a process, each role on a part of the task numbers. Pure."""

import math

from launch.cluster_run import COORDINATOR_PORT, PORT, Run, pods_of
from launch.roles import BALANCED
from launch.sizing import MIB, needs_of


def make_script(run: Run) -> str:
    """The script; config.json lies beside it. Shards differ in port, for several may share a node."""
    counts = {role: count for role, count in pods_of(run).items() if count}
    needs = {role: needs_of(role, run.experiment, run.size) for role in counts}
    lines = [
        "#!/bin/bash",
        f"# {run.name}, config {run.digest}. Submit it in its own folder; `python` must be able to import launch.node.",
        f"#SBATCH --job-name={run.name}",
        "#SBATCH --output=%x-%j.log",
    ]
    for place, role in enumerate(counts):
        if place:
            lines.append("#SBATCH hetjob")
        lines.append(f"#SBATCH --ntasks={counts[role]}")
        lines.append(f"#SBATCH --cpus-per-task={math.ceil(needs[role].cpu)}")
        lines.append(f"#SBATCH --mem-per-cpu={math.ceil(needs[role].memory / MIB / math.ceil(needs[role].cpu))}M")
        if needs[role].gpus:
            lines.append(f"#SBATCH --gpus-per-task={needs[role].gpus}")
    lines += [
        "set -euo pipefail",
        "",
        'here="${SLURM_SUBMIT_DIR:-$PWD}"',
        'export ANTIPHON_CONFIG="$here/config.json"',
        'export ANTIPHON_RUN_DIRECTORY="$here/run-$SLURM_JOB_ID"  # on a file system that all nodes share',
        'mkdir -p "$ANTIPHON_RUN_DIRECTORY"',
        f"export ANTIPHON_ACTORS_PER_POD={run.experiment.topology.actors_per_pod}",
        "",
        "# One line a task, in the order of their numbers: where Slurm put each shard.",
        "mapfile -t hosts < <(srun --het-group=0 --label hostname | sort -n | cut -d' ' -f2)",
        "addresses=()",
        'for index in "${!hosts[@]}"; do',
        f'  addresses+=("${{hosts[$index]}}:$(({PORT} + index))")',
        "done",
        'ANTIPHON_ADDRESSES=$(IFS=,; echo "${addresses[*]}")',
        "export ANTIPHON_ADDRESSES",
    ]
    if counts["learner"] > 1:
        lines += [
            "coordinator=$(srun --het-group=1 --label hostname | sort -n | head -n 1 | cut -d' ' -f2)",
            f'export ANTIPHON_COORDINATOR="$coordinator:{COORDINATOR_PORT}"',
        ]
    lines.append("")
    for place, role in enumerate(counts):
        if role == "monitor":
            lines.append("# The monitor's end is the run's; what still runs is stopped with the job.")
        srun = f"srun --het-group={place} --kill-on-bad-exit=0 python -m launch.node --role={role}"
        if run.balancer and role in BALANCED:
            srun += f" --balancer={run.balancer}"
        lines.append(srun if role == "monitor" else f"{srun} &")
    return "\n".join(lines) + "\n"
