r"""Renders a run as Kubernetes manifests, which also are a base of Kustomize. Touches no cluster.

python -m launch.kubernetes --config=apex_pong --set topology.shards=4 topology.actors=256 \
  --image=REGISTRY/antiphon:TAG --output=manifests
kubectl apply -k manifests
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from absl import app, flags

from launch import command_line, compose, manifests, sizing, slurm
from launch.cluster_run import Run, check_name, check_topology

USAGE = (
    "       --image=IMAGE          with the registry that nodes pull it from",
    "       --output=FOLDER        where to write; must be empty or not there",
    "       --overwrite            write over the files of that folder",
    "       --format=FORMAT        kubernetes (the default), compose (one host) or slurm (an sbatch script)",
    "       --name=NAME            begins every object's name; the preset's name by default",
    "       --namespace=NAMESPACE  written into kustomization.yaml",
    "       --storage_class=CLASS  of every volume; the cluster's default by default",
    "       --balancer=HOST:PORT   of a load balancer before the shards, for actors and evaluator (docs/cluster.md)",
)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def to_yaml(*documents: Any) -> str:
    """As a person would write it: keys in the order given."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)


def render(run: Run, form: str, namespace: str = "") -> dict[str, str]:
    """The files of a format, by name."""
    match form:
        case "kubernetes":
            files = manifests.make_manifests(run)
            texts = {name: to_yaml(*objects) for name, objects in files.items()}
            return {**texts, "kustomization.yaml": to_yaml(manifests.kustomization(list(files), namespace))}
        case "compose":
            return {"compose.yaml": to_yaml(compose.make_compose(run)), **_config_file(run)}
        case "slurm":
            return {"run.sbatch": slurm.make_script(run), **_config_file(run)}
    raise ValueError(f"--format={form!r} is unknown. Choose kubernetes, compose or slurm.")


def _config_file(run: Run) -> Mapping[str, str]:
    from configs import serialization

    return {"config.json": serialization.to_json(run.experiment)}


def write(folder: Path, files: Mapping[str, str], *, overwrite: bool) -> None:
    """Writes the files.

    Raises:
        ValueError: the folder holds something and `overwrite` isn't set, or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output={folder} is a file. Name a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"--output={folder} isn't empty. Name another folder, or add --overwrite.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def main(argv: Sequence[str]) -> int:
    """Checks, renders, writes."""
    values = flags.FLAGS
    try:
        experiment = command_line.experiment_of(values.config, [*values.set, *argv[1:]])
        name = values.name or experiment.name.replace("_", "-")
        check_name(name)
        check_topology(experiment)
        if not values.output:
            raise ValueError("--output is missing. Set --output=FOLDER.")
        command_line.quieten()
        run = Run(
            name=name,
            image=values.image,
            experiment=experiment,
            size=sizing.size_of(experiment),
            storage_class=values.storage_class,
            balancer=values.balancer,
        )
        files = render(run, values.format, values.namespace)
        write(Path(values.output), files, overwrite=values.overwrite)
    except (ValueError, ImportError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(f"{len(files)} files of {name} (config {run.digest}) in {values.output}")
    return 0


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(command_line.help_text("launch.kubernetes", __doc__, USAGE))
        sys.exit(0)
    command_line.define_flags()
    flags.DEFINE_string("image", "", "With the registry that nodes pull it from.")
    flags.DEFINE_string("output", "", "A folder to write to.")
    flags.DEFINE_bool("overwrite", False, "Write over the files of a folder that isn't empty.")
    flags.DEFINE_enum("format", "kubernetes", ["kubernetes", "compose", "slurm"], "What to render.")
    flags.DEFINE_string("name", "", "Begins every object's name.")
    flags.DEFINE_string("namespace", "", "Written into kustomization.yaml.")
    flags.DEFINE_string("storage_class", "", "Of every volume.")
    flags.DEFINE_string("balancer", "", "host:port of a load balancer before the shards, for actors and evaluator.")
    app.run(main, flags_parser=command_line.parse)
