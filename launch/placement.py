"""Which devices each process gets, and what of a placement can't be.

Device ids are those of the GPUs, where the machine has any. Without, each process is given as many CPU devices as it
has ids, so that the same program runs anywhere.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from configs.experiment import Experiment

GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each, in the order of their ids


def gpus() -> tuple[int, ...]:
    """The ids of this machine's GPUs; asks the driver's files, for asking JAX would take the devices."""
    return tuple(range(len(list(GPUS.iterdir())))) if GPUS.is_dir() else ()


def devices_of(experiment: Experiment, role: str, index: int) -> tuple[int, ...]:
    """The ids that a process may use; none: it computes on the CPU."""
    devices = experiment.devices
    if role == "learner":
        own = len(devices.learner) // experiment.learner.processes
        return devices.learner[index * own : (index + 1) * own]
    if role == "accelerated_actor" and devices.actor:
        return devices.actor[index : index + 1]
    return ()


def check_placement(experiment: Experiment, present: Collection[int] = ()) -> None:
    """Refuses a placement that can't be, and environments that don't split into the batches of an accelerated actor.

    `present` are the ids of the GPUs that there are; without any, every id is one.

    Raises:
        ValueError: names the fields, both numbers and the nearest that work.
    """
    devices, topology = experiment.devices, experiment.topology
    _check_ids("devices.actor", devices.actor, present)
    _check_ids("devices.learner", devices.learner, present)
    shared = set(devices.actor) & set(devices.learner)
    if shared:
        used = {*devices.actor, *devices.learner}
        free = sorted(set(present or range(len(used) + 1)) - used)
        instead = f"devices.learner={free[0]}" if free else "one of them to fewer ids"
        raise ValueError(
            f"devices.actor={_text(devices.actor)} and devices.learner={_text(devices.learner)} both hold "
            f"{_text(sorted(shared))}: a device has one role, else each would wait for the other's work. Set {instead}."
        )
    if devices.actor and len(devices.actor) != topology.accelerated_actors:
        raise ValueError(
            f"devices.actor={_text(devices.actor)} holds {len(devices.actor)} devices for topology.accelerated_actors="
            f"{topology.accelerated_actors}: each has one of its own. Set topology.accelerated_actors="
            f"{len(devices.actor)}, or devices.actor to {topology.accelerated_actors} ids."
        )
    if devices.learner:
        _check_processes(devices.learner, experiment.learner.processes)
        check_divides(
            "learner.batch_size",
            experiment.learner.batch_size,
            f"devices.learner={_text(devices.learner)}",
            len(devices.learner),
        )
    if topology.accelerated_actors:
        _check_batches(experiment)


def check_divides(field: str, value: int, over: str, parts: int) -> None:
    """Raises ValueError where `value` doesn't divide evenly over so many parts."""
    if value % parts:
        below, above = value // parts * parts, -(-value // parts) * parts
        raise ValueError(
            f"{field}={value} doesn't divide over the {parts} of {over}. "
            f"Set {field}={f'{below} or ' if below else ''}{above}."
        )


def _check_processes(ids: Sequence[int], processes: int) -> None:
    if len(ids) % processes:
        fitting = [each for each in range(1, len(ids) + 1) if len(ids) % each == 0]
        nearest = min(fitting, key=lambda each: abs(each - processes))
        raise ValueError(
            f"devices.learner={_text(ids)} holds {len(ids)} devices for learner.processes={processes}: each has "
            f"as many of its own. Set learner.processes={nearest}, or devices.learner to a multiple of {processes} ids."
        )


def _check_ids(field: str, ids: Sequence[int], present: Collection[int]) -> None:
    for device in ids:
        if device < 0 or (present and device not in present):
            there = f"this machine has {', '.join(map(str, sorted(present)))}" if present else "ids count from 0"
            nearest = min(present, key=lambda each: abs(each - device)) if present else 0
            raise ValueError(f"{field}={_text(ids)} holds {device}, which isn't there: {there}. Set {field}={nearest}.")
    if len(set(ids)) < len(ids):
        raise ValueError(f"{field}={_text(ids)} holds a device twice. Set {field}={_text(dict.fromkeys(ids))}.")


def _text(ids: Iterable[int]) -> str:
    """As they are typed."""
    return ",".join(map(str, ids))


def _check_batches(experiment: Experiment) -> None:
    config = experiment.accelerated
    environments, size = config.environments, config.batch_size
    if environments % size:
        fitting = [each for each in range(1, environments + 1) if environments % each == 0]
        nearest = [*[each for each in fitting if each < size][-1:], *[each for each in fitting if each > size][:1]]
        raise ValueError(
            f"accelerated.batch_size={size} doesn't divide accelerated.environments={environments}: the last few of a "
            f"round would wait for others. Set accelerated.batch_size={' or '.join(map(str, nearest))}, or "
            f"accelerated.environments={-(-environments // size) * size}."
        )
