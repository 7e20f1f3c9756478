"""Low-level parts of starting processes: death signals, messages among one user's processes, environments of roles."""

import contextlib
import ctypes
import os
import pickle
import secrets
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG = 1
_LARGEST_MESSAGE = 200_000  # bytes: the kernel's default send buffer holds 212,992 and a message has to fit in it
STOP_VARIABLE = "ANTIPHON_STOP_SECONDS"  # variable: a container's seconds between SIGTERM and SIGKILL
COORDINATOR = "ANTIPHON_COORDINATOR"  # variable: "host:port" that the first of several learner processes listens at
_LOCAL_HOSTS = ("localhost", "127.0.0.1")


class RoleRequest(NamedTuple):
    """All that a process needs to play a role."""

    name: str  # e.g. "actor-3"
    function: str  # "module:function" of type launch.roles.RoleFunction
    assignment: bytes  # pickled: only the role's own process imports what it names
    environment: dict[str, str]  # set before anything initialises
    log: str  # path; appended to


class Exit(NamedTuple):
    """How a role's process ended."""

    code: int  # as in subprocess: -N for signal N
    text: str  # code 0: why the role ended, in its own words; else the end of its traceback


def die_with(parent: int, death_signal: signal.Signals) -> None:
    """Has the kernel send this process a signal when its parent ends, however that comes about.

    The kernel watches the parent's *thread* that made this process: start processes from threads that stay.

    Raises:
        SystemExit: the parent was gone before the kernel knew.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise SystemExit(f"The parent process {parent} has ended already.")


class Channel:
    """Whole pickled messages between two processes of the same user.

    SOCK_SEQPACKET keeps the messages apart and tells at once when the other process is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():  # what is received gets unpickled: anybody else could run code here
            connection.close()
            raise PermissionError(f"The process at the other end belongs to user {user}, not to {os.getuid()}.")
        connection.settimeout(5.0)
        self._connection = connection

    def fileno(self) -> int:
        """For selectors: readable when a message is there or the peer is gone."""
        return self._connection.fileno()

    def send(self, message: Any) -> bool:
        """Sends one message; False if the peer is gone or has not read for seconds.

        Raises:
            ValueError: the message is too large.
        """
        data = pickle.dumps(message)
        if len(data) > _LARGEST_MESSAGE:
            raise ValueError(
                f"A message to another process has {len(data):,} bytes, over the limit of {_LARGEST_MESSAGE:,}: large "
                "arrays or tables don't belong in an experiment's config; name a file in it instead."
            )
        try:
            self._connection.send(data)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """The next message; None when the peer is gone. Waits up to 5 s: call it when readable."""
        try:
            data = self._receive()
        except OSError:
            return None
        return pickle.loads(data) if data else None

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(_LARGEST_MESSAGE)
        except ConnectionResetError:  # said once, and before what the peer sent, where it left without reading ours
            return self._connection.recv(_LARGEST_MESSAGE)

    def close(self) -> None:
        """Closes this end; the peer sees it at once."""
        self._connection.close()


def listen() -> tuple[socket.socket, str]:
    """A listening socket and its address, for `connect`.

    Its name lives in the kernel only ("abstract"): no limit of 108 bytes on a run's directory, no file that stays.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name = f"antiphon-{os.getpid()}-{secrets.token_hex(8)}"
    listener.bind(b"\0" + name.encode())
    listener.listen(1024)
    return listener, name


def connect(name: str) -> Channel:
    """Connects to a socket made by `listen`.

    Raises:
        OSError: nobody listens there any more.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(5.0)
    try:
        connection.connect(b"\0" + name.encode())
    except OSError:
        connection.close()
        raise
    return Channel(connection)


def stop_seconds(environ: Mapping[str, str], keep_back: float, default: float) -> float:
    """Seconds that something in a container has to stop in, `keep_back` of which others need after it; at least the
    default, which also holds where no container says how long it has.

    Raises:
        ValueError: what it says is no number.
    """
    text = environ.get(STOP_VARIABLE, "")
    try:
        return max(float(text) - keep_back, default) if text else default
    except ValueError:
        raise ValueError(
            f"{STOP_VARIABLE}={text!r} must be the seconds between SIGTERM and SIGKILL. Set it to 30, or not at all."
        ) from None


def signal_name(number: int) -> str:
    """E.g. "SIGKILL"."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def local_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for every process of a local program: proxies must not catch connections to this machine, and memory
    that was freed must be found again. Orbax writes each checkpoint in threads of its own, and each new thread would
    take an arena of the C library's, of eight for each core, that has other holes: a learner grew for hours.
    """
    environ = os.environ if environ is None else environ
    variables = {}
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host for host in environ.get(name, "").split(",") if host]
        variables[name] = ",".join(hosts + [host for host in _LOCAL_HOSTS if host not in hosts])
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "MALLOC_ARENA_MAX": "2"}
    return variables | {name: environ.get(name, value) for name, value in defaults.items()}


def role_environment(
    role: str,
    devices: Sequence[str | int] = (),
    *,
    forced: bool = False,
    threads: int = 1,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment variables of one role's process.

    Args:
        role: a key of launch.roles.FUNCTIONS; named in errors.
        devices: GPUs it may use, as CUDA_VISIBLE_DEVICES names them; none: it computes on the CPU and sees no GPU.
        forced: there are no GPUs; it is given as many CPU devices instead.
        threads: CPU threads that XLA, TensorFlow and the BLAS libraries may each use.
        environ: what to extend (proxies, XLA_FLAGS); None: this process's.
    """
    environ = os.environ if environ is None else environ
    if threads < 1:
        raise ValueError(f"threads={threads} of {role} must be at least 1.")
    flags = [environ.get("XLA_FLAGS", ""), f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"]
    if forced and devices:
        flags.append(f"--xla_force_host_platform_device_count={len(devices)}")
        devices = ()
    count = str(threads)
    return local_environment(environ) | {
        "CUDA_VISIBLE_DEVICES": ",".join(str(device) for device in devices),
        "JAX_PLATFORMS": "cuda,cpu" if devices else "cpu",
        "XLA_FLAGS": " ".join([*(flag for flag in flags if flag), f"intra_op_parallelism_threads={count}"]),
        "NPROC": count,  # what XLA's CPU client takes for the size of its pools, else the number of cores
        "TF_NUM_INTRAOP_THREADS": count,
        "TF_NUM_INTEROP_THREADS": "1",
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
    }
