"""Nodes as a person or a cluster runs them: their command, in processes of their own."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.launch.programs import REPOSITORY, environment


def start(role: str, directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "launch.node", f"--role={role}", f"--run_directory={directory}", *arguments]
    return subprocess.Popen(
        command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: "subprocess.Popen[str]", *, ask: bool = True) -> tuple[int, str]:
    if ask:
        process.send_signal(signal.SIGTERM)
    try:
        output, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    return process.returncode, output
