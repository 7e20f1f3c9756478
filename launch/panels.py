"""What is shown of a run, as Rich renderables and as plain text. Pure: a report in, something to print out."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from launch.run_directory import RunDirectory
from launch.run_state import RoleRecord, RunState, RunStatus, ShardStatus

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
OLD = 5.0  # seconds after which a status is called old; the monitor writes one every second
NAMED_ROLES = 12  # more than these are shown as one line for each kind of role


def sparkline(values: Sequence[float | None], width: int, ascii_only: bool = False) -> str:
    """The last `width` values as bars between their smallest and largest."""
    known = [value for value in values if value is not None][-width:]
    if not known or width < 1:
        return ""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    least, most = min(known), max(known)
    if most <= least:
        return blocks[3] * len(known)
    return "".join(blocks[round((value - least) / (most - least) * (len(blocks) - 1))] for value in known)


def bar(share: float, width: int, ascii_only: bool = False) -> Text:
    """A bar that is `share` (0..1) full."""
    full = round(min(1.0, max(0.0, share)) * width)
    done, rest = ("#", ".") if ascii_only else ("━", "─")
    return Text.assemble((done * full, "cyan"), (rest * (width - full), "dim"))


def duration(seconds: float) -> str:
    """E.g. "1:02:03", or "2:03" below an hour."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: float) -> str:
    """E.g. "3s", "2m", "1h"."""
    if seconds < 100:
        return f"{max(0.0, seconds):.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 6000 else f"{seconds / 3600:.0f}h"


def rate(value: float) -> str:
    """E.g. "2,010/s", "3.2/s"."""
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.1f}/s"


def relative(path: Path) -> str:
    """As one would type it from here."""
    shown = os.path.relpath(path)
    return str(path) if shown.startswith(os.path.join("..", "..")) else shown


def make_view(
    report: RunStatus | None,
    run: Path,
    preset: str,
    processes: Mapping[str, Any],
    now: float,
    began: float,
    *,
    width: int,
    height: int,
    ascii_only: bool = False,
    trouble: str = "",
) -> RenderableType:
    """The whole view, at most `height` - 1 lines of `width` characters. `now`, `began` in seconds since the epoch."""
    header = Text(no_wrap=True, overflow="ellipsis")
    header.append(preset, "bold").append(f"  {relative(run)}", "dim")
    parts: list[RenderableType] = [header, Text("")]
    if report is None:
        # A run's time is counted from its monitor's start, so what came before is told apart from it.
        parts.append(Text(trouble or f"starting for {duration(now - began)}: no status of the monitor yet", "yellow"))
    else:
        header.append(f"  {duration((report.time if report.ended else now) - report.started)}", "bold")
        parts += [_numbers(report, width, ascii_only), Text(""), _shards(report.state.shards, width, ascii_only)]
        parts += _messages(report, now, trouble)
    lines_left = height - 2 - 8 - min(len(report.state.shards) if report else 0, 8) - (len(parts) - 3)
    parts += [Text(""), roles_table(report, processes, now, lines_left)]
    return Group(*parts)


def _numbers(report: RunStatus, width: int, ascii_only: bool) -> Table:
    state, limits = report.state, report.limits
    spark = 12 if width < 90 else 24
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right", style="bold", min_width=9)
    table.add_column(no_wrap=True, min_width=spark)
    table.add_column(no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
    table.add_row(
        "environment steps",
        f"{state.environment_steps:,}",
        rate(state.environment_steps_per_second),
        _goal(state.environment_steps, limits.environment_steps),
    )
    table.add_row(
        "learner steps",
        f"{state.learner_steps:,}",
        rate(state.learner_steps_per_second),
        _goal(state.learner_steps, limits.learner_steps),
    )
    table.add_row(
        "training return",
        _number(state.training_return),
        Text(sparkline(state.training_returns, spark, ascii_only), "blue"),
        f"last {min(state.episodes, 100)} of {state.episodes:,} episodes" if state.episodes else "no episode yet",
    )
    table.add_row(
        "evaluation return",
        _number(state.evaluation.mean if state.evaluation else None),
        Text(sparkline(state.evaluation_returns, spark, ascii_only), "green"),
        _evaluation_note(report),
    )
    delay = "" if state.weights_delay is None else f"weights reach actors after {state.weights_delay * 1e3:,.0f} ms"
    table.add_row("policy lag", _number(state.policy_lag), "learner steps", delay)
    return table


def _goal(done: int, limit: int) -> str:
    return f"{done / limit:.0%} of {limit:,}" if limit else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _evaluation_note(report: RunStatus) -> str:
    state, target = report.state, report.limits.target_return
    notes = []
    if state.best_evaluation is not None:
        notes.append(f"best {state.best_evaluation.mean:,.1f}")
    elif not any(role.name.startswith("evaluator-") for role in state.roles):
        notes.append("no evaluator")
    if target is not None:
        notes.append(f"target {target:g}")
    if state.evaluation is not None:
        notes.append(f"{state.evaluation.episodes} episodes")
    return ", ".join(notes) or "none yet"


def _shards(shards: Sequence[ShardStatus], width: int, ascii_only: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
    for shard in shards[:8] if len(shards) <= 8 else shards[:7]:
        share = shard.size / shard.max_size if shard.max_size else 0.0
        note: str | Text = {"inserts": "writers wait", "samples": "learner waits"}.get(shard.blocked, "")
        if shard.error:
            note = Text("doesn't answer", "red")  # why is said below
        fill = f"{shard.size:,}/{shard.max_size:,}" if shard.max_size else "-"
        table.add_row(f"replay shard {shard.index}", bar(share, 16 if width < 90 else 28, ascii_only), fill, note)
    if len(shards) > 8:
        size, room = sum(shard.size for shard in shards), sum(shard.max_size for shard in shards)
        text = f"{size:,}/{room:,}"
        table.add_row(f"all {len(shards)}", bar(size / room if room else 0, 16, ascii_only), text, "")
    return table


def _messages(report: RunStatus, now: float, trouble: str) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if trouble:
        lines.append(Text(trouble, "red", no_wrap=True, overflow="ellipsis"))
    if now - report.time > OLD and not report.ended:
        lines.append(Text(f"the monitor has written nothing for {age(now - report.time)}", "red"))
    for line in report.waits[:4]:
        lines.append(Text(line, "yellow", no_wrap=True, overflow="ellipsis"))
    if len(report.waits) > 4:
        lines.append(Text(f"and {len(report.waits) - 4} more that wait", "yellow"))
    for line in report.advice[:2]:
        lines.append(Text(f"nothing moves: {line}", "red"))
    if report.ended:
        lines.append(Text(report.reason or "stopped", "green"))
    return [Text(""), *lines] if lines else []


def merge_roles(
    report: RunStatus | None, processes: Mapping[str, Any], now: float
) -> list[tuple[str, str, str, str, int]]:
    """(name, state, pid, age of the last record, restarts) of each role: the launcher knows best whether a process
    runs, and its records what it does.
    """
    told = {role.name: role for role in report.state.roles} if report else {}
    rows = []
    for name in dict.fromkeys((*processes, *told)):
        role, process = told.get(name, RoleRecord(name=name)), processes.get(name)
        state, pid = role.state, role.pid
        if process is not None:
            state, pid = _state_of(process, role.state), process.pid
        last = age(now - role.time) if role.time else "-"
        rows.append((name, state, str(pid or "-"), last, role.restarts))
    return rows


def _state_of(process: Any, told: str) -> str:
    if process.code is not None:
        return "done" if process.code == 0 else f"failed: exit code {process.code}"
    return told if process.status == "running" else str(process.status)


def roles_table(report: RunStatus | None, processes: Mapping[str, Any], now: float, lines: int) -> Table:
    """One line for each role, or for each kind of role where they don't fit into `lines`."""
    rows = merge_roles(report, processes, now)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("role", no_wrap=True, min_width=12)
    table.add_column("state", no_wrap=True, overflow="ellipsis", min_width=20)
    for title in ("pid", "last word", "restarts"):
        table.add_column(title, no_wrap=True, justify="right")
    if len(rows) + 1 > max(lines, 4) or len(rows) > 4 * NAMED_ROLES:
        rows = _by_kind(rows)
    for name, state, pid, last, restarts in rows:
        table.add_row(name, Text(state, _style(state)), pid, last, str(restarts) if restarts else "")
    return table


def _by_kind(rows: Sequence[tuple[str, str, str, str, int]]) -> list[tuple[str, str, str, str, int]]:
    kinds: dict[str, list[tuple[str, str, str, str, int]]] = {}
    for row in rows:
        kinds.setdefault(row[0].rpartition("-")[0], []).append(row)
    merged = []
    for kind, members in kinds.items():
        if len(members) == 1:
            merged.append(members[0])
            continue
        states: dict[str, int] = {}
        for member in members:
            states[member[1]] = states.get(member[1], 0) + 1
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: -item[1]))
        merged.append((f"{kind} x {len(members)}", told, "", "", sum(member[4] for member in members)))
    return merged


def _style(state: str) -> str:
    if state in ("running", "done"):
        return "green"
    return "red" if any(word in state for word in ("fail", "died", "dead", "answer", "exit")) else "yellow"


def plain_line(report: RunStatus | None, processes: Mapping[str, Any], elapsed: float, trouble: str = "") -> str:
    """The same numbers on one line, for a file or a pipe."""
    if report is None:
        states = ", ".join(f"{name} {process.status}" for name, process in processes.items())
        waiting = trouble or "starting: no status of the monitor yet"
        return f"[{duration(elapsed)}] {waiting}{f' ({states})' if states else ''}"
    state = report.state
    parts = [
        f"environment steps {state.environment_steps:,} ({rate(state.environment_steps_per_second)})",
        f"learner steps {state.learner_steps:,} ({rate(state.learner_steps_per_second)})",
        f"return {_number(state.training_return)}",
        f"evaluation {_number(state.evaluation.mean if state.evaluation else None)}",
        f"lag {_number(state.policy_lag)}",
        f"replay {' '.join(_fill(shard) for shard in state.shards)}",
        *report.waits,
    ]
    rows = merge_roles(report, processes, report.time)
    other = [f"{name} {text}" for name, text, *_ in rows if text != "running" and not text.startswith("waiting")]
    if other:
        parts.append("; ".join(other[:4]) + (f"; {len(other) - 4} more" if len(other) > 4 else ""))
    return f"[{duration(state.elapsed)}] " + " | ".join(parts)


def _fill(shard: ShardStatus) -> str:
    if shard.error:
        return "?"
    return f"{shard.size / shard.max_size:.0%}" if shard.max_size else "-"


def summary_lines(report: RunStatus | None, run: RunDirectory, preset: str, reason: str = "") -> list[str]:
    """What was reached, what it took, and where everything lies. `reason` counts where the report has none."""
    if report is None:
        return [f"{preset}: {reason or 'stopped'}; the monitor wrote nothing", f"  logs        {relative(run.logs)}"]
    state: RunState = report.state
    lines = [f"{preset}: {report.reason or reason or 'stopped'}"]
    lines.append(
        f"  {state.environment_steps:,} environment steps, {state.learner_steps:,} learner steps, "
        f"{state.episodes:,} episodes in {duration(state.elapsed)}"
    )
    returns = []
    if state.training_return is not None:
        returns.append(f"training return {state.training_return:,.1f}")
    if state.best_evaluation is not None:
        best = state.best_evaluation
        returns.append(f"best evaluation {best.mean:,.1f} at {best.environment_steps:,} environment steps")
    if returns:
        lines.append("  " + ", ".join(returns))
    files = {"curve": run.curve, "metrics": run.metrics, "TensorBoard": run.tensorboard, "logs": run.logs,
             "checkpoints": run.checkpoints}  # fmt: skip
    lines += [f"  {name:<12}{relative(path)}" for name, path in files.items() if path.exists()]
    return lines
