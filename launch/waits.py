"""Who waits for whom, in words, and what to change when nothing moves. Pure."""

import math
from collections.abc import Sequence

from launch.run_state import RunState, ShardStatus
from replay.spec import ReplaySpec

NOTABLE = 0.1  # share of its time that a role may wait without being mentioned
STALE = 30.0  # seconds that an actor may go on with the same weights while the learner moves, without being mentioned
SILENCE = 15.0  # seconds without a record of an actor or a learner before it is mentioned; they report twice a second


def who_waits(state: RunState, now: float) -> tuple[str, ...]:
    """One line for each thing that waits or is wrong; none where all flows. `now` in seconds since the epoch."""
    lines = []
    if state.learner_waiting is not None and state.learner_waiting >= NOTABLE:
        held = _shards_where(state.shards, "samples")
        lines.append(f"learner waits for data {state.learner_waiting:.0%} of its time{held}")
    if state.actors_waiting is not None and state.actors_waiting >= NOTABLE:
        held = _shards_where(state.shards, "inserts")
        lines.append(f"actors wait for replay {state.actors_waiting:.0%} of their time{held}")
    lines.extend(f"{role.name} is {role.state}" for role in state.roles if role.state.startswith("waiting"))
    lines.extend(
        f"{role.name} has said nothing for {now - role.time:.0f} s"
        for role in state.roles
        if role.time
        and now - role.time > SILENCE
        and role.name.startswith(("actor-", "accelerated_actor-", "learner-"))
    )
    lines.extend(f"replay-{shard.index} doesn't answer: {shard.error}" for shard in state.shards if shard.error)
    places = (
        (("actor.items_lost", "accelerated_actor.items_lost"), "on their way to replay"),
        (("replay.items_lost",), "with their shards"),
    )
    for counters, where in places:
        if lost := sum(state.counts.get(counter, 0) for counter in counters):
            lines.append(f"about {lost:,.0f} items were lost {where}")
    lines.extend(
        f"{name} is not a finite number"
        for name, value in state.learner_metrics.items()
        if value is None or not math.isfinite(value)
    )
    return tuple(lines)


def stale_weights(state: RunState, publish_period: int, now: float) -> tuple[str, ...]:
    """One line for each actor whose weights stay the same while the learner, who publishes every `publish_period`
    steps, has gone on.
    """
    return tuple(
        f"{role.name} has acted with weights of learner step {role.version:,} for {now - role.version_time:.0f} s, and "
        f"the learner is at {state.learner_steps:,}: see logs/{role.name}.log"
        for role in state.roles
        if role.name.startswith(("actor-", "accelerated_actor-"))
        and role.version is not None
        and now - role.version_time > STALE
        and role.version + 2 * publish_period < state.learner_steps
    )


def _shards_where(shards: Sequence[ShardStatus], blocked: str) -> str:
    which = [str(shard.index) for shard in shards if shard.blocked == blocked]
    return f" ({blocked} blocked at shard {', '.join(which)})" if which else ""


def first_words_missing(state: RunState) -> str:
    """Which roles have said nothing yet, "" if all have."""
    silent = [role.name for role in state.roles if not role.time]
    if not silent:
        return ""
    shown = ", ".join(silent[:6]) + (f" and {len(silent) - 6} more" if len(silent) > 6 else "")
    return f"no record from {shown} yet"


def advise(state: RunState, replay: ReplaySpec) -> tuple[str, ...]:
    """What keeps everything from moving, and which field to change, from the counters of the limiters."""
    lines = [_of_shard(shard, replay, len(state.shards)) for shard in state.shards]
    missing = first_words_missing(state)
    if missing:
        lines.append(f"There is {missing}: see logs/ROLE-INDEX.log in the run's folder for why it doesn't start.")
    found = tuple(dict.fromkeys(line for line in lines if line))
    return found or ("No limiter blocks anybody: look at the states of the roles, and into logs/ for the slow one.",)


def _of_shard(shard: ShardStatus, replay: ReplaySpec, shards: int) -> str:
    name = f"Table trajectories of shard {shard.index}"
    if shard.error:
        return f"Shard {shard.index} doesn't answer ({shard.error}): see logs/replay-{shard.index}.log."
    match shard.blocked:
        case "inserts" if replay.queue:
            return (
                f"{name} blocks the actors: its queue is full ({shard.size:,} of {shard.max_size:,} items) and the "
                "learner takes nothing. See logs/learner-0.log; a batch must fit in, so "
                "agent_config.replay.max_size must be at least learner.batch_size."
            )
        case "inserts":
            return (
                f"{name} blocks the actors: {shard.inserts:,} inserts x samples_per_insert="
                f"{replay.samples_per_insert:g} - {shard.samples:,} samples is over the limiter's bound, and the "
                "learner samples nothing. See logs/learner-0.log, or raise agent_config.replay.error_buffer "
                f"(now {replay.error_buffer:g})."
            )
        case "samples" if replay.queue:
            return (
                f"{name} blocks the learner: its queue holds {shard.size:,} items and no more come. See "
                "logs/actor-0.log, or lower learner.batch_size."
            )
        case "samples" if shard.size * shards < replay.min_size:
            return (
                f"{name} blocks the learner: it holds {shard.size:,} items, and sampling starts at about "
                f"{-(-replay.min_size // shards):,} (agent_config.replay.min_size={replay.min_size} over {shards} "
                f"shards). See logs/actor-0.log for why no more come, or lower agent_config.replay.min_size."
            )
        case "samples":
            return (
                f"{name} blocks the learner: {shard.inserts:,} inserts x samples_per_insert="
                f"{replay.samples_per_insert:g} - {shard.samples:,} samples is under the limiter's bound, and no items "
                "come. See logs/actor-0.log, or raise agent_config.replay.samples_per_insert or error_buffer "
                f"(now {replay.error_buffer:g})."
            )
    return ""
