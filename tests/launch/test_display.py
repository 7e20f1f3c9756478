"""What a person sees of a run."""

import dataclasses
import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch import display, panels, status
from launch.run_directory import RunDirectory, to_json, write_atomically
from launch.run_state import Evaluation, Limits, RoleRecord, RunState, RunStatus, ShardStatus

NOW = 10_000.0  # seconds
EVALUATION = Evaluation(elapsed=50, environment_steps=61_440, learner_steps=900, version=890, mean=498.2, episodes=20)
STATE = RunState(
    elapsed=83.0,
    environment_steps=61_440,
    environment_steps_per_second=2010.0,
    learner_steps=960,
    learner_steps_per_second=31.25,
    episodes=512,
    training_return=182.3,
    training_returns=(1.0, 4.0, 8.0),
    evaluation=EVALUATION,
    best_evaluation=EVALUATION,
    evaluation_returns=(100.0, 498.2),
    policy_lag=1.8,
    shards=(
        ShardStatus(index=0, size=50, max_size=100, blocked="inserts"),
        ShardStatus(index=1, size=25, max_size=100, error="no answer"),
    ),
    roles=(
        RoleRecord(name="actor-0", state="running", pid=4001, time=NOW - 3),
        RoleRecord(name="learner-0", state="waiting: a batch", pid=4002, time=NOW - 130, restarts=2),
    ),
)
STATUS = RunStatus(
    preset="impala-cartpole",
    started=NOW - 83,
    time=NOW,
    state=STATE,
    limits=Limits(environment_steps=1_000_000, target_return=475.0),
    waits=("learner waits for data 43% of its time",),
)


@dataclasses.dataclass
class Process:
    status: str = "running"
    pid: int = 0
    code: int | None = None


def render(report: RunStatus | None, width: int = 80, height: int = 30, **processes: Process) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    named = {name.replace("_", "-"): process for name, process in processes.items()}
    console.print(
        panels.make_view(report, Path("runs/a"), "impala-cartpole", named, NOW, NOW - 9, width=width, height=height)
    )
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_the_view_shows_the_numbers() -> None:
    text = "\n".join(render(STATUS))
    for words in (
        "impala-cartpole", "runs/a", "1:23", "61,440", "2,010/s", "6% of 1,000,000", "960", "31.2/s", "182.3", "▁▄█",
        "498.2", "best 498.2, target 475, 20 episodes", "1.8", "50/100", "writers wait", "doesn't answer",
        "learner waits for data 43%",
    ):  # fmt: skip
        assert words in text, words
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("actor-", "learner-0"))}
    assert rows["actor-0"] == ["actor-0", "running", "4001", "3s"]
    assert rows["learner-0"] == ["learner-0", "waiting:", "a", "batch", "4002", "2m", "2"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = dataclasses.replace(STATUS, waits=("x" * 300,))
    assert max(len(line.rstrip()) for line in render(long, width)) <= width


def test_many_roles_fit_into_a_small_terminal() -> None:
    roles = tuple(RoleRecord(name=f"actor-{n}", state="running", time=NOW) for n in range(300))
    shards = tuple(ShardStatus(index=n, size=1, max_size=2) for n in range(20))
    state = dataclasses.replace(STATE, roles=(*roles, *STATE.roles), shards=shards)
    lines = render(dataclasses.replace(STATUS, state=state), height=24, actor_7=Process(code=1))
    assert len(lines) < 24
    (line,) = [line for line in lines if line.startswith("actor x")]
    assert re.split(r"\s{2,}", line.strip()) == ["actor x 300", "299 running, 1 failed: exit code 1"]


def test_the_launcher_knows_best_whether_a_process_runs() -> None:
    for process, words in (
        (Process("running", 77), "actor-0       running"),
        (Process("starting", 0), "actor-0       starting"),
        (Process("exited", 77, code=-9), "actor-0       failed: exit code -9"),
        (Process("exited", 77, code=0), "actor-0       done"),
    ):
        assert words in "\n".join(render(STATUS, actor_0=process))


def test_an_old_status_and_none_are_told_apart() -> None:
    assert "has written nothing for 12s" in "\n".join(render(dataclasses.replace(STATUS, time=NOW - 12)))
    assert "has written nothing" not in "\n".join(render(STATUS))
    assert "starting for 0:09: no status of the monitor yet" in "\n".join(render(None))


def test_sparkline() -> None:
    assert panels.sparkline([0, 7, 14], 10) == "▁▅█"
    assert panels.sparkline([0, 7, 14], 2) == "▁█"
    assert panels.sparkline([3, 3], 5) == "▄▄"
    assert panels.sparkline([0, 7], 5, ascii_only=True).isascii()
    assert panels.sparkline([], 5) == ""


def test_a_pipe_gets_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "PLAIN_PERIOD", 0.1)
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = RunDirectory(tmp_path)
    out = io.StringIO()
    with display.Display(tmp_path, "impala-cartpole", Console(file=out)) as shown:
        shown.update({"actor-0": Process("starting")})
        wait_for(out, "no status of the monitor yet (actor-0 starting)")
        write_atomically(run.status, to_json(dataclasses.asdict(STATUS)))
        wait_for(out, "61,440 (2,010/s)")
        ended = dataclasses.replace(STATUS, ended=True, reason="target return 475 reached", waits=())
        write_atomically(run.status, to_json(dataclasses.asdict(ended)))
    text = out.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    line = next(line for line in text.splitlines() if "61,440" in line)
    for words in ("[1:23]", "960 (31.2/s)", "return 182.3", "evaluation 498.2", "replay 50% ?", "actor-0 starting"):
        assert words in line
    assert "impala-cartpole: target return 475 reached" in text
    assert "61,440 environment steps, 960 learner steps, 512 episodes in 1:23" in text


def wait_for(out: io.StringIO, words: str) -> None:
    deadline = time.monotonic() + 30
    while words not in out.getvalue():
        assert time.monotonic() < deadline, out.getvalue()
        time.sleep(0.02)


VIEWER = """
import sys, time
from absl import flags, logging
from pathlib import Path
from launch.display import Display
light = [name for name in ("jax", "tensorflow", "reverb", "numpy", "matplotlib") if name in sys.modules]
display = Display(Path(sys.argv[1]), "impala-cartpole")
logging.use_absl_handler()
flags.FLAGS([""])  # as the launcher does: absl's handler now keeps the stderr it began with
with display:
    display.update({})
    time.sleep(1.5)
    logging.warning("a word of the launcher")
    time.sleep(1.5)
logging.warning("a word after it")
print("loaded:", light)
"""


def test_a_terminal_gets_a_live_view_and_the_launcher_stays_light(tmp_path: Path) -> None:
    write_atomically(RunDirectory(tmp_path).status, to_json(dataclasses.asdict(STATUS)))
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30", "PYTHONIOENCODING": "utf-8"}
    viewer = subprocess.Popen(
        [sys.executable, "-c", VIEWER, str(tmp_path)], stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    assert viewer.wait(30) == 0, shown.decode()
    os.close(leader)
    text = shown.decode()
    assert "\x1b[" in text  # drawn over and over
    assert "61,440" in text
    assert text.index("impala-cartpole: stopped") > text.rindex("policy lag")
    assert "loaded: []" in text
    # A log line goes to the start of a cleared line, and the whole view is drawn again below it.
    assert re.search(r"\x1b\[2K[^\n]*a word of the launcher", text)
    assert "policy lag" in text[text.index("a word of the launcher") :]
    assert "a word after it" in text


def test_the_summary_says_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(tmp_path / "runs" / "a")
    run.logs.mkdir(parents=True)
    ended = dataclasses.replace(STATUS, ended=True, reason="target return 475 reached")
    lines = panels.summary_lines(ended, run, "impala-cartpole", reason="a learner's word")
    assert lines[0] == "impala-cartpole: target return 475 reached"
    assert "  logs        runs/a/logs" in lines
    assert not any("curve" in line for line in lines)  # there is none yet
    assert panels.summary_lines(STATUS, run, "a", reason="5 learner steps reached")[0] == "a: 5 learner steps reached"
    assert panels.summary_lines(STATUS, run, "a")[0] == "a: stopped"


@pytest.mark.parametrize("ended", [False, True])
def test_status_command(tmp_path: Path, capsys: pytest.CaptureFixture[Any], ended: bool) -> None:
    report = dataclasses.replace(STATUS, ended=ended, reason="target return 475 reached" if ended else "")
    write_atomically(RunDirectory(tmp_path).status, to_json(dataclasses.asdict(report)))
    assert status.main(["status", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "61,440" in text
    assert ("target return 475 reached" in text) == ended
    assert status.main(["status", str(tmp_path / "none")]) == 1
    assert "runs/latest" in capsys.readouterr().err
