"""The command `caslock`: finds its subcommand, and turns errors into one sentence and an exit status.

Each subcommand is a module, which is imported when it is asked for, and imports a store when it needs one.
"""

from __future__ import annotations

import difflib
import os
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from caslock import __version__
from caslock.errors import CaslockError, with_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FAILED: Final = 2
"""Exit status: bad arguments, or a store that could not be reached."""

INTERRUPTED: Final = 130

_MODULES: Final = {
    "run": "run",
    "show": "show",
    "list": "list_keys",
    "break": "break_key",
    "top": "top",
    "doctor": "doctor",
    "verify": "verify_command",
}


class Subcommands(click.Group):
    """The subcommands, each imported when it is asked for."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Name them in the order of the help."""
        return list(_MODULES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import one."""
        if name not in _MODULES:
            if context.resilient_parsing:  # for completion
                return None
            close = difflib.get_close_matches(name, _MODULES, 1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{meant}", context)
        found: click.Command = import_module(f"caslock.cli.{_MODULES[name]}").command
        return found


@click.group(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="caslock", message="%(prog)s %(version)s")
def caslock() -> None:
    """Locks on the store you already run.

    \b
    Example:
      caslock run nightly -- ./nightly.sh
      caslock list

    docs/command-line.md explains all of it.
    """  # noqa: D301 - \b is a mark for click


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; gives the exit status."""
    try:
        return caslock.main(arguments, prog_name="caslock", standalone_mode=False) or 0
    except click.ClickException as error:
        with _heard_or_not():
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except (CaslockError, ValueError, TypeError, ImportError, OSError) as error:
        say(with_notes(error))
        return FAILED


def say(text: str) -> None:
    """Say something in one line on standard error."""
    with _heard_or_not():
        sys.stderr.write(f"caslock: {' '.join(text.split())}\n")


@contextmanager
def _heard_or_not() -> Iterator[None]:
    """Let what can't be written to standard error, such as to a full disk, change no exit status."""
    try:
        yield
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - until the exit, which flushes it
