"""``docs/command-line.md`` agrees with the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from caslock.cli import run
from tests.support.command_line import ROOT, environment

TEXT = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
def test_its_commands_run(block: str, tmp_path: Path) -> None:
    """Who pastes a block sees it work."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = environment(f"sqlite:///{tmp_path}/locks.db", PATH=path)
    done = subprocess.run(["bash", "-e", "-c", block], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_its_table_has_each_exit_status() -> None:
    """Page, help and code give a status the same meaning."""
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", TEXT, re.MULTILINE))
    assert set(rows) == {"2", str(run.LOST), str(run.BUSY), str(run.REFUSED)}
    help_text = run.command.help or ""
    assert re.findall(r"^\s*(\d+) ", help_text, re.MULTILINE) == ["2", "123", "124", "125", "126", "127"]
    assert "--busy-exit-code" in rows[str(run.BUSY)]
    assert f"{run.NOT_EXECUTABLE}, {run.NOT_FOUND}" in TEXT


def test_it_names_each_option_that_has_a_status() -> None:
    """Every signal that is passed on is on the page."""
    assert [name for name in (*run._ENDS, *run._OTHERS) if name not in TEXT] == []
