"""Pods of rendered manifests, and the podman command that makes a container of each."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """One container, as the manifests have it."""

    name: str
    role: str
    aliases: tuple[str, ...]  # by which others find it
    container: Mapping[str, Any]
    environment: Mapping[str, str]
    volumes: Mapping[str, Mapping[str, Any]]  # by name, of the pod; a StatefulSet's claims are not among them

    @property
    def folder(self) -> str:
        """Of its run: that of a claim, which pods of one Job share, or one of its own."""
        claim: str = self.volumes.get("run", {}).get("persistentVolumeClaim", {}).get("claimName", self.name)
        return claim

    def arguments(self, network: str, folder: Path, label: str) -> list[str]:
        """Of `podman run`. `folder` gets the run's folder and holds config/."""
        words = [f"--name={self.name}", f"--hostname={self.name}", f"--network={network}", f"--label={label}"]
        words += [f"--network-alias={alias}" for alias in self.aliases]
        words += [f"--env={name}={value}" for name, value in self.environment.items()]
        words += ["--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"]
        for mount in self.container["volumeMounts"]:
            words += self._mount(mount["name"], mount["mountPath"], folder)
        return [*words, self.container["image"], *self.container["args"]]

    def _mount(self, volume: str, path: str, folder: Path) -> list[str]:
        source = self.volumes.get(volume, {})
        if volume == "config":
            return [f"--volume={folder / 'config'}:{path}:ro"]
        if volume == "shm":
            return [f"--shm-size={source['emptyDir']['sizeLimit'].removesuffix('i').lower()}"]
        if volume == "run":
            return [f"--volume={folder / self.folder}:{path}"]
        return [f"--tmpfs={path}:mode=1777"]


def pods_of(manifests: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Pod]:
    """What a cluster would make of the manifests, without what schedules and restarts it."""
    return [
        pod
        for objects in manifests.values()
        for each in objects
        if "template" in each.get("spec", {})
        for pod in _pods(each)
    ]


def _pods(workload: Mapping[str, Any]) -> Iterator[Pod]:
    name, spec = workload["metadata"]["name"], workload["spec"]
    template = spec["template"]["spec"]
    (container,) = template["containers"]
    service = spec.get("serviceName", template.get("subdomain", ""))
    for index in range(spec.get("replicas", spec.get("completions", 1))):
        pod = f"{name}-{index}"
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        if workload["kind"] == "Job":
            environment["JOB_COMPLETION_INDEX"] = str(index)
        yield Pod(
            name=pod,
            role=container["name"],
            aliases=(f"{pod}.{service}",) if service else (),
            container=container,
            environment=environment,
            volumes={volume["name"]: volume for volume in template.get("volumes", ())},
        )
