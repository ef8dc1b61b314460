"""The command line, ``caslock``.  Nothing else in caslock imports it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit status."""
    try:
        from caslock.cli.main import main as run  # noqa: PLC0415 - it needs click
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "click":
            raise
        sys.stderr.write("caslock: the command line needs click: pip install 'caslock[cli]'\n")
        return 2
    return run(arguments)
