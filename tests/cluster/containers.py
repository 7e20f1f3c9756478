"""A rendered run in containers: started, watched, hurt and removed again."""

import contextlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launch.cluster_run import Run
from launch.manifests import make_manifests
from tests.cluster.pods import Pod, pods_of

COMMAND_SECONDS = 90  # for podman to do one thing on a busy machine


def podman(*words: str, check: bool = True) -> str:
    """Runs podman; its output."""
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if check and done.returncode:
        raise RuntimeError(f"podman {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


class Cluster:
    """The containers of one run, on a network of their own."""

    def __init__(self, run: Run, folder: Path) -> None:
        manifests = make_manifests(run)
        self.pods = {pod.name: pod for pod in pods_of(manifests)}
        self._folder = folder
        self._network = f"{run.name}-{secrets.token_hex(3)}"
        self._made: set[str] = set()
        (folder / "config").mkdir()
        for name, text in manifests["configmap.yaml"][0]["data"].items():
            (folder / "config" / name).write_text(text)
        podman("network", "create", self._network)

    def named(self, role: str) -> list[Pod]:
        """The pods of a role, by index."""
        return [pod for pod in self.pods.values() if pod.role == role]

    def start(self, *names: str) -> None:
        """Starts containers in this order; one that was lost gets its folder again, and a new address."""
        for name in names:
            pod = self.pods[name]
            volume = self._folder / pod.folder
            volume.mkdir(exist_ok=True)
            os.chown(volume, 1000, 1000)
            self._made.add(name)
            podman("run", "--detach", *pod.arguments(self._network, self._folder, f"network={self._network}"))

    def lose(self, name: str) -> None:
        """Takes a container away as a node that dies does: nothing in it gets a word."""
        podman("rm", "--force", "--time=0", name)

    def log(self, name: str) -> str:
        """What its present container has said."""
        done = subprocess.run(["podman", "logs", name], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def probe(self, name: str, question: str) -> bool:
        """The answer of one of its probes."""
        command = self.pods[name].container["startupProbe"]["exec"]["command"]
        words = [question if word == "started" else word for word in command]
        done = subprocess.run(
            ["podman", "exec", name, *words], capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
        return done.returncode == 0

    def exit_code(self, name: str) -> int | None:
        """None while it runs."""
        state, code = podman("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", name).split()
        return int(code) if state in ("exited", "stopped") else None

    def status(self) -> dict[str, Any]:
        """What the monitor wrote last; empty before."""
        (monitor,) = self.named("monitor")
        try:
            found: dict[str, Any] = json.loads((self._folder / monitor.folder / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def stop(self, *names: str) -> dict[str, int | None]:
        """SIGTERM, and time to heed it; the exit codes."""
        subprocess.run(["podman", "stop", "--time=60", *names], capture_output=True, timeout=300, check=False)
        return {name: self.exit_code(name) for name in names}

    def address(self, name: str) -> str:
        """On the network."""
        return podman("inspect", "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)

    @contextlib.contextmanager
    def cut(self, one: str, other: str) -> Iterator[None]:
        """Drops every packet between two containers, silently as a network that is split does."""
        address = self.address(other)
        rules = [["OUTPUT", "--destination", address], ["INPUT", "--source", address]]
        for rule in rules:
            self._iptables(one, "--append", *rule)
        try:
            yield
        finally:
            for rule in rules:
                self._iptables(one, "--delete", *rule)

    def bytes_of(self, name: str) -> tuple[int, int]:
        """Received and sent by a container so far."""
        counted = self._inside(name, "cat", "/proc/net/dev")
        fields = next(line for line in counted.splitlines() if "eth0:" in line).split(":")[1].split()
        return int(fields[0]), int(fields[8])

    def remove(self) -> None:
        """Leaves nothing."""
        if self._made:
            podman("rm", "--force", "--time=0", *sorted(self._made), check=False)
        podman("network", "rm", "--force", self._network, check=False)

    def _iptables(self, name: str, action: str, *rule: str) -> None:
        self._inside(name, "iptables", action, *rule, "--jump", "DROP")

    def _inside(self, name: str, *command: str) -> str:
        """Runs a command of this machine in a container's network."""
        process = podman("inspect", "--format={{.State.Pid}}", name)
        words = ["nsenter", f"--target={process}", "--net", "--", *command]
        if command[0] == "cat":  # /proc/net is the reader's own
            words = ["cat", f"/proc/{process}/net/dev"]
        return subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True).stdout


def wait_for(
    what: str, holds: Callable[[], bool], seconds: float, cluster: Cluster, names: Sequence[str] = ()
) -> float:
    """Waits for a condition; the seconds that took. Fails with the last lines of the named containers' logs."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            logs = "\n".join(f"--- {name}\n{cluster.log(name)[-3000:]}" for name in names or cluster.pods)
            raise AssertionError(f"{what} did not come about within {seconds:g} s.\n{cluster.status()}\n{logs}")
        time.sleep(0.5)
    return time.monotonic() - began
