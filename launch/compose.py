"""A run as compose.yaml: each role in a container of its own on one host, as on a cluster. Pure."""

from collections.abc import Mapping
from typing import Any

from launch.cluster_run import (
    CONFIG_DIRECTORY,
    RUN_DIRECTORY,
    SHARES,
    Run,
    command_of,
    dns_name,
    environment_of,
    pods_of,
)
from launch.sizing import SHARED_MEMORY, needs_of


def make_compose(run: Run) -> Mapping[str, Any]:
    """The file as plain data; config.json lies beside it."""
    parts = [(role, index) for role, count in pods_of(run).items() for index in range(count)]
    volumes: dict[str, Any] = {_volume(run, role, index): {} for role, index in parts if _keeps(run, role)}
    return {
        "name": run.name,
        "services": {f"{dns_name(role)}-{index}": _service(run, role, index) for role, index in parts},
        **({"volumes": volumes} if volumes else {}),
    }


def _service(run: Run, role: str, index: int) -> Mapping[str, Any]:
    needs = needs_of(role, run.experiment, run.size)
    environment = environment_of(run, role, needs) | {"ANTIPHON_INDEX": str(index)}
    host = f"{run.name}-{dns_name(role)}-{index}"
    volumes = [f"./config.json:{CONFIG_DIRECTORY}/config.json:ro"]
    if _keeps(run, role):
        volumes.append(f"{_volume(run, role, index)}:{RUN_DIRECTORY}")
    return {
        "image": run.image,
        "command": command_of(role),
        "environment": environment,
        "hostname": host,
        # The names that shards and the coordinator have on a cluster.
        "networks": {"default": {"aliases": [f"{host}.{run.name}-{dns_name(role)}"]}},
        "volumes": volumes,
        "tmpfs": ["/tmp"] if _keeps(run, role) else ["/tmp", f"{RUN_DIRECTORY}:mode=1777"],
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": needs.memory,
        **({"shm_size": SHARED_MEMORY} if role in SHARES else {}),
        **({"deploy": {"resources": {"reservations": {"devices": [_gpus(needs.gpus)]}}}} if needs.gpus else {}),
        "stop_grace_period": f"{needs.stop_seconds}s",
        # The monitor's end is the run's; all others are wanted until then.
        "restart": "on-failure" if role == "monitor" else "unless-stopped",
    }


def _gpus(count: int) -> Mapping[str, Any]:
    return {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}


def _keeps(run: Run, role: str) -> bool:
    return needs_of(role, run.experiment, run.size).disk > 0


def _volume(run: Run, role: str, index: int) -> str:
    """Learners share theirs, as on a cluster."""
    return role if role in ("learner", "monitor") else f"{role}-{index}"
