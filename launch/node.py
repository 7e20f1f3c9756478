"""One node of a cluster: plays a role of an experiment, or several actors, until it is done or SIGTERM comes.

python -m launch.node --role=actor --index=3 --config=apex_cartpole --addresses=shard-0:8000,shard-1:8000
"""

import dataclasses
import glob
import importlib.util
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import app, flags, logging

from configs import serialization
from configs.experiment import Experiment
from configs.overrides import apply_overrides
from launch import command_line, warm
from launch.hub import Hub
from launch.probe import HEARTBEAT, READY
from launch.processes import RoleRequest, listen, role_environment, signal_name, stop_seconds
from launch.restarts import NEVER, policy_of
from launch.roles import BALANCED, FUNCTIONS, Assignment, check_address
from launch.supervisor import Supervisor
from replay.reachable import unknown_hosts

ROLES = tuple(role for role in FUNCTIONS if role != "preflight")
SINGLE_ROLES = ("learner", "evaluator", "monitor")  # index 0 where none is given
DEVICE_ROLES = ("learner", "accelerated_actor")  # see the accelerators of the container
GRACE = 20.0  # seconds that its roles have to stop in, or more where the container has more than AFTER beside them
AFTER = 10.0  # seconds that a node itself may take to end after them
NAME_SECONDS = 30.0  # that all names get to be known in before some are enough: gRPC asks again only after as long
LOOKUP_SECONDS = 2.0  # that the lookup of all names gets each time
PATIENCE = 10.0  # seconds between two words on what is waited for
TICK = 0.2  # seconds
INDEX_VARIABLES = ("ANTIPHON_INDEX", "JOB_COMPLETION_INDEX", "SLURM_PROCID")
USAGE = (
    "       --role=ROLE   " + ", ".join(ROLES),
    "       --index=N     among those of its role; else " + ", ".join(INDEX_VARIABLES) + " or the host name's number",
    "       --addresses   host:port of all replay shards, in order; else ANTIPHON_ADDRESSES",
    "       --balancer    host:port of a load balancer before the shards, for " + ", ".join(BALANCED) + ";",
    "                     else ANTIPHON_BALANCER",
    "       --run_directory=DIR  of this node; else ANTIPHON_RUN_DIRECTORY",
    "       --actors_per_pod=K   actors index*K to index*K+K-1; else ANTIPHON_ACTORS_PER_POD, topology.actors_per_pod",
    "",
    "--config may be the path of a config.json, and is ANTIPHON_CONFIG where it isn't given. Exit code 0: its",
    "work is done; 130 or 143: stopped by a signal, to be made again where Kubernetes moves pods; 1: it failed; 2: the",
    "command line can't work.",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """What one node is to do."""

    role: str
    index: int  # of the node
    actors: int  # processes of it: 1, but for actors
    experiment: Experiment
    addresses: tuple[str, ...]
    run_directory: Path
    grace: float = GRACE
    balanced: bool = False  # the only address is a load balancer's

    def assignments(self) -> list[Assignment]:
        """Its roles. The last node of the fleet has fewer actors where they don't divide; one beyond it has all."""
        first = self.index * self.actors
        indices = range(first, first + self.actors)
        within = [index for index in indices if self.role != "actor" or index < self.experiment.topology.actors]
        return [
            Assignment(
                role=self.role,
                index=index,
                experiment=self.experiment,
                addresses=self.addresses,
                run_directory=self.run_directory,
                balanced=self.balanced,
            )
            for index in within or indices
        ]


def index_of(role: str, given: str | None, environ: Mapping[str, str], host: str) -> int:
    """Which of its role a node is.

    Raises:
        ValueError: nothing says it, or what does is no number.
    """
    sources = [("--index", given), *((name, environ.get(name)) for name in INDEX_VARIABLES)]
    for source, value in sources:
        if value:
            if not value.isdecimal():
                raise ValueError(f"{source}={value!r} must be a whole number from 0. Set --index=0, for example.")
            return int(value)
    if role in SINGLE_ROLES:
        return 0
    number = re.search(r"-(\d+)$", host.partition(".")[0])
    if number is None:
        raise ValueError(
            f"--index is missing for role {role}: none of {', '.join(INDEX_VARIABLES)} is set, and the host name "
            f"{host!r} doesn't end in -NUMBER. Give --index=0 to the first one, and so on."
        )
    return int(number[1])


def addresses_of(text: str) -> tuple[str, ...]:
    """The shards' addresses.

    Raises:
        ValueError: none, or one that is no host:port.
    """
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("--addresses is missing: host:port of every replay shard, e.g. --addresses=shard-0:8000.")
    for address in addresses:
        check_address(address, "--addresses")
    return addresses


def load_experiment(config: str | None, overrides: Sequence[str]) -> Experiment:
    """The experiment of a preset's name or of a config.json.

    Raises:
        ValueError: no such preset or file, or a field or value that can't be.
    """
    if config is None or not (config.endswith(".json") or os.sep in config):
        return command_line.experiment_of(config, overrides)
    try:
        text = Path(config).read_text()
    except OSError as error:
        raise ValueError(
            f"--config={config} can't be read: {error.strerror}. Name a preset or a config.json."
        ) from error
    return apply_overrides(serialization.from_json(text), overrides)


def parse_node(overrides: Sequence[str], environ: Mapping[str, str], host: str) -> NodeSpec:
    """What the flags and the environment say.

    Raises:
        ValueError: what they say can't work; the message names the flag.
    """
    given = flags.FLAGS
    if given.role not in ROLES:
        raise ValueError(f"--role={given.role} is none. Choose one of {', '.join(ROLES)}.")
    experiment = load_experiment(given.config or environ.get("ANTIPHON_CONFIG"), overrides)
    addresses = addresses_of(given.addresses or environ.get("ANTIPHON_ADDRESSES", ""))
    if len(addresses) != experiment.topology.shards:
        raise ValueError(
            f"--addresses names {len(addresses)} shards, and topology.shards={experiment.topology.shards}. "
            f"Name all of them, or set topology.shards={len(addresses)}."
        )
    balancer = given.balancer or environ.get("ANTIPHON_BALANCER", "")
    if balancer:
        check_address(balancer, "--balancer")
    if balancer and given.role not in BALANCED:
        raise ValueError(
            f"--balancer={balancer} can't be for role {given.role}, which must reach each shard itself. Leave it out, "
            f"or give it to {', '.join(BALANCED)}."
        )
    index = index_of(given.role, given.index, environ, host)
    if given.role == "replay" and index >= len(addresses):
        raise ValueError(
            f"--index={index} of a replay shard must be below {len(addresses)}, the number of --addresses."
        )
    text = given.actors_per_pod or environ.get("ANTIPHON_ACTORS_PER_POD") or str(experiment.topology.actors_per_pod)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--actors_per_pod={text} must be at least 1. Set --actors_per_pod=1.")
    directory = given.run_directory or environ.get("ANTIPHON_RUN_DIRECTORY")
    if not directory:
        raise ValueError("--run_directory is missing: a folder for this node's logs and checkpoints.")
    return NodeSpec(
        role=given.role,
        index=index,
        actors=int(text) if given.role == "actor" else 1,
        experiment=experiment,
        addresses=(balancer,) if balancer else addresses,
        run_directory=Path(directory),
        grace=stop_seconds(environ, AFTER, GRACE),
        balanced=bool(balancer),
    )


class Node:
    """A node's processes: its roles, and the process that several actors are forked from."""

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
        self._assignments = spec.assignments()
        self._signal = 0
        self._warm: subprocess.Popen[bytes] | None = None
        self._logs = spec.run_directory.resolve() / "logs"
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"--run_directory={spec.run_directory} can't be written: {error}. "
                "Name a folder that this user may write."
            ) from error
        for prefix in (HEARTBEAT, READY):  # of a node before this one
            for each in self._assignments:
                (spec.run_directory / f"{prefix}{each.name}").unlink(missing_ok=True)
        self._tails = [_Tail(self._logs / f"{each.name}.log", each.name) for each in self._assignments]

    def run(self) -> int:
        """Plays the roles to their end; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        if self._spec.role != "replay" and not self._wait_for_names():
            return 128 + self._signal
        several = len(self._assignments) > 1
        # One role's failure is the pod's, and Kubernetes starts that again; of several, the others should go on.
        policy = policy_of(self._spec.experiment.supervision) if several else NEVER
        roles = {each.name: each.role for each in self._assignments}
        hub = Hub(self._requests(), roles, dict.fromkeys(roles, "node"), self._spec.grace, policy)
        supervisor = Supervisor("node", hub.address, self._start_warm() if several else "")
        thread = threading.Thread(target=supervisor.run, name="supervisor", daemon=True)
        thread.start()
        self._watch(hub)
        hub.dismiss()
        thread.join(timeout=2.0)
        if self._warm is not None:
            self._warm.terminate()
            self._warm.wait(timeout=warm.GRACE + 1.0)
        self._copy_logs()
        return self._say_end(hub)

    def _note(self, number: int, _: object) -> None:
        self._signal = self._signal or number

    def _watch(self, hub: Hub) -> None:
        while not hub.done and not hub.overdue:
            hub.poll(TICK)
            self._copy_logs()
            if self._signal and not hub.stopping:
                logging.info("%s: asking %s to stop.", signal_name(self._signal), ", ".join(hub.states))
                hub.stop(f"stopped by {signal_name(self._signal)}")

    def _say_end(self, hub: Hub) -> int:
        for problem in hub.problems:
            logging.error("%s", problem)
        if hub.failure or hub.problems or hub.overdue:
            logging.error("%s", hub.failure or "It did not stop in time.")
            return 1
        logging.info("%s-%d is over: %s.", self._spec.role, self._spec.index, hub.reason)
        return 128 + self._signal if self._signal else 0

    def _copy_logs(self) -> None:
        for tail in self._tails:
            tail.copy(named=len(self._tails) > 1)

    def _requests(self) -> list[RoleRequest]:
        threads = self._spec.experiment.learner.threads if self._spec.role == "learner" else 1
        environment = role_environment(self._spec.role, devices_of(self._spec.role), threads=threads)
        return [
            RoleRequest(
                each.name,
                "launch.liveness:run",
                pickle.dumps(each),
                environment,
                str(self._logs / f"{each.name}.log"),
            )
            for each in self._assignments
        ]

    def _start_warm(self) -> str:
        listener, address = listen()
        with listener:
            self._warm = warm.start(listener, [*warm.MODULES, "launch.liveness"], self._logs / "warm.log", {})
        return address

    def _wait_for_names(self) -> bool:
        """Waits until the shards' names are known, for some of them at least; False where it was asked to stop."""
        began = time.monotonic()
        say_at = began
        while not self._signal:
            unknown = unknown_hosts(self._spec.addresses, LOOKUP_SECONDS)
            waited = time.monotonic() - began
            if not unknown:
                return True
            if waited > NAME_SECONDS and len(unknown) < len(self._spec.addresses):
                logging.warning("Starting without %s, whose names aren't known yet.", ", ".join(unknown))
                return True
            if time.monotonic() >= say_at:
                say_at += PATIENCE
                logging.info(
                    "Waiting %.0f s for the names of %s: DNS doesn't know them yet.", waited, ", ".join(unknown)
                )
            time.sleep(TICK)
        return False


class _Tail:
    """Copies what is appended to a log to standard output, for `kubectl logs`."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._at = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def copy(self, named: bool) -> None:
        """Copies the lines that are new; with the role's name before each where there are several."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            fresh = file.read()
        self._at += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        head = f"{self._name} | ".encode() if named else b""
        sys.stdout.buffer.write(b"".join(head + line + b"\n" for line in lines))
        sys.stdout.buffer.flush()


def devices_of(role: str) -> list[int]:
    """The GPUs of the container, for roles that compute on them: those whose devices it was given."""
    if role not in DEVICE_ROLES or importlib.util.find_spec("jax_cuda12_plugin") is None:
        return []
    return list(range(len(glob.glob("/dev/nvidia[0-9]*"))))


def keep_off_proxies(addresses: Sequence[str]) -> None:
    """A proxy in the environment must not be asked for the shards: gRPC would, and never connect."""
    hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in addresses)
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name, ""), *hosts]))


def main(argv: Sequence[str]) -> int:
    """Checks, then plays."""
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    logging.set_stderrthreshold("info")
    try:
        spec = parse_node([*flags.FLAGS.set, *argv[1:]], os.environ, socket.gethostname())
        keep_off_proxies(spec.addresses)
        node = Node(spec)
    except (ValueError, ImportError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return node.run()


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(command_line.help_text("launch.node", __doc__, USAGE))
        sys.exit(0)
    command_line.define_flags()
    flags.DEFINE_enum("role", None, ROLES, "What it plays.")
    flags.DEFINE_string("index", None, "Which one of its role.")
    flags.DEFINE_string("addresses", None, "host:port of all replay shards, in order, with commas between.")
    flags.DEFINE_string("balancer", None, "host:port of a load balancer before the shards.")
    flags.DEFINE_string("run_directory", None, "Folder of this node's logs, checkpoints and so on.")
    flags.DEFINE_string("actors_per_pod", None, "Actors that this node plays.")
    app.run(main, flags_parser=command_line.parse)
