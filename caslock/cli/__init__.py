"""The command line, ``caslock``.  Nothing else in caslock imports it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit status."""
    _open_missing_streams()
    try:
        from caslock.cli.main import main as run  # noqa: PLC0415 - it needs click
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "click":
            raise
        sys.stderr.write("caslock: the command line needs click: pip install 'caslock[cli]'\n")
        return 2
    return run(arguments)


def _open_missing_streams() -> None:
    """Replace each standard stream that was closed before the start: Python has None for it, which can't be used."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - until the exit
