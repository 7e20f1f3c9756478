"""The topologies whose rendered files are kept under golden/, and what renders them.

python -m tests.launch.topologies    writes them anew
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from configs.overrides import apply_overrides
from configs.presets import preset
from launch.cluster_run import Run
from launch.kubernetes import render
from launch.sizing import size_of

GOLDEN = Path(__file__).parent / "golden"
REGENERATE = "python -m tests.launch.topologies"
FORMATS = ("kubernetes", "compose", "slurm")
TOPOLOGIES = {
    "small": ("apex_cartpole", ()),
    "many-actors": ("apex_pong", ("topology.shards=4", "topology.actors=256", "topology.actors_per_pod=8")),
    "accelerated": (
        "sebulba_pong",
        (
            "topology.accelerated_actors=2",
            "devices.actor=0,1",
            "devices.learner=2,3",
            "learner.batch_size=16",
            "agent_config.replay.max_size=32",
        ),
    ),
    "two-hosts": ("apex_cartpole", ("learner.processes=2",)),
}


@functools.cache
def make_run(config: str = "apex_cartpole", *overrides: str, name: str = "run") -> Run:
    experiment = apply_overrides(preset(config), overrides)
    return Run(
        name=name,
        image="registry.example/antiphon:1",
        experiment=experiment,
        size=size_of(experiment),
        storage_class="",
    )


def golden_files(topology: str) -> Mapping[str, str]:
    """Every format's files. The experiment itself is masked: it has tests of its own, and gets fields now and then."""
    config, overrides = TOPOLOGIES[topology]
    run = make_run(config, *overrides, name=topology)
    return {
        f"{topology}/{form}/{name}": _masked(text, run.digest)
        for form in FORMATS
        for name, text in render(run, form).items()
        if name != "config.json"
    }


def _masked(text: str, digest: str) -> str:
    text = text.replace(digest, "DIGEST")
    return re.sub(r"(  config\.json: \|\n)(?:    .*\n)+", r"\1    EXPERIMENT\n", text)


if __name__ == "__main__":
    for each in TOPOLOGIES:
        for path, content in golden_files(each).items():
            (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / path).write_text(content)
