"""The files in `docs/recipes.md`, written to a folder and run there, with the locks in a file of that folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support import locations

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
_BLOCK: Final = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES: Final = {name: f"# {name}\n{text}" for name, text in _BLOCK.findall(PAGE)}
"""Each file by its name, which is the first line of its block."""

LIMIT: Final = 250.0
"""Seconds for anything to happen; only a very busy machine needs as many."""


class Folder:
    """Where the files of a recipe are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = f"sqlite:///{path}/locks.db"
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join((str(path), str(ROOT))),
            "CASLOCK_STORE": self.store,
        }

    def write(self, name: str, text: str | None = None, **changes: str) -> Path:
        """Write a file of the page, or another one; `changes` names texts to be replaced, all of which are there."""
        content = FILES[name] if text is None else text
        for key, new in changes.items():
            old = CHANGED[key]
            assert old in content, old
            content = content.replace(old, new)
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        return file

    def run(self, *command: str, status: int = 0) -> str:
        """Run a command to its end; return what it printed, with its errors if it is to fail."""
        done = subprocess.run(
            command,
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr if status else done.stdout

    @contextmanager
    def started(self, *command: str) -> Iterator[Program]:
        """Run a command in the background until the end of the block."""
        number = len(list(self.path.glob("*.out")))
        program = Program(self.path / f"{number}.out", command, self.path, self.environment)
        try:
            yield program
        finally:
            program.end()


class Program:
    """A process in the background, with all its output in one file."""

    def __init__(self, output: Path, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._output = output
        # What is started in the background may inherit that it ignores Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        signal.signal(signal.SIGINT, before)

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def waits_for(self, pattern: str, count: int = 1) -> list[str]:
        """Wait until it has printed a pattern so many times."""
        until(lambda: len(re.findall(pattern, self.output)) >= count, lambda: f"{pattern} in {self.output}")
        return re.findall(pattern, self.output)

    def ends_by(self, number: signal.Signals) -> int:
        """Send it a signal; return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT)

    def end(self) -> None:
        """End it and all that it has started, whatever they do."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT)


def until(happened: Callable[[], bool], told: Callable[[], str] = str) -> None:
    assert locations.until(happened, LIMIT), told()


CHANGED: Final = {
    "redis": "redis://localhost:6379/0",
    "locks": "redis://locks:6379/0",
    "ttl": "ttl=10",
    "often": "hour=2",
    "caslock": "/opt/venv/bin/caslock",
    "program": "/usr/local/bin/nightly",
    "seconds": '"15"',
}
"""What a test replaces in a file: servers, paths, and times that are too long for a test."""
