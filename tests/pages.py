"""Pages of docs/ that hold files and commands: written where a reader would write them, and run as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.source_tree import ROOT


class Page:
    """The fenced blocks of one page."""

    def __init__(self, name: str) -> None:
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL)
        # Python blocks say in their first line which file they are.
        self.files = {code.split("\n")[0].removeprefix("# "): code for kind, code in blocks if kind == "python"}
        self.scripts = [path for path in self.files if "/" not in path]
        self.commands = [code.strip() for kind, code in blocks if kind == "bash"]

    def write(self, folder: Path) -> None:
        """Writes the files into a folder of the reader's."""
        for path, code in self.files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(code)


def run_python(folder: Path, *arguments: str, timeout: float = 60.0) -> str:
    """Runs Python in the folder, with Antiphon installed as far as PYTHONPATH can; what it printed."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stderr + result.stdout
    return result.stdout
