"""Draws docs/top.svg, what `caslock top` shows of real locks: python site/top.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from caslock import connect
from caslock.cli.top import Leases, _table

_COMMANDS = (
    ("run", "room:42", "room:43", "--note", "booking 9314"),
    ("run", "job:nightly", "--owner", "nightly", "--ttl", "60"),
)
_KEPT = ("run", "job:hourly", "--min-hold", "600", "--", "true")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CASLOCK_STORE"] = url = f"sqlite:///{folder}/locks.db"
        caslock = [sys.executable, "-m", "caslock"]
        subprocess.run([*caslock, *_KEPT], check=True)  # noqa: S603 - our own
        running = [
            subprocess.Popen([*caslock, *each, "--", "sh", "-c", "echo; read -r line"], stdin=-1, stdout=-1)  # noqa: S603
            for each in _COMMANDS
        ]
        for each in running:
            each.stdout.readline()  # it holds its keys
        with connect(url) as store:
            console = Console(record=True, width=80, force_terminal=True)
            store.traits = store.traits._replace(location="sqlite:////var/lib/caslock/locks.db")
            console.print(_table(Leases(store, "")))
        for each in running:
            each.communicate(b"\n")
    plain = re.sub(r"@font-face {{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # nothing is loaded from elsewhere
    console.save_svg(str(Path(__file__).parents[1] / "docs" / "top.svg"), title="caslock top", code_format=plain)
