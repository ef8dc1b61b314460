"""Which store a command uses: ``--store URL``, ``CASLOCK_STORE``, or a file of the user."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

import click

from caslock.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.store import ClosableStore

_SQLITE: Final = "sqlite:///"

F = TypeVar("F", bound="Callable[..., Any] | click.Command")

store_option: Callable[[F], F] = click.option(
    "--store",
    "url",
    envvar="CASLOCK_STORE",
    metavar="URL",
    help="Where the locks are, such as redis://localhost:6379/0.  [default: $CASLOCK_STORE, or an SQLite file in your "
    "state folder, for the processes of one user on one host]",
)
json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def opened(url: str | None, *, looks: bool = False) -> ClosableStore:
    """Make the store; nothing is sent yet.  From now on warnings are printed as the command's own messages are.

    For a command that only `looks`, raises FileNotFoundError if there is no file of that name: SQLite would make one.
    """
    from caslock.connect import connect  # noqa: PLC0415 - not for `--help`

    logging.getLogger("caslock").addHandler(_WARNINGS)

    if url and url.lower().startswith("memory:"):
        raise click.UsageError("memory:// lives inside one process: name a store that processes can share")
    store = connect(url or default_url())
    if looks and url and store.traits.location.startswith(_SQLITE):
        path = path_of(store.traits.location)
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}; the first lock makes it, so check the path")
    return store


_WARNINGS: Final = logging.StreamHandler()
"""Prints what the library warns of in the form of a command's own messages."""
_WARNINGS.setLevel(logging.WARNING)
_WARNINGS.setFormatter(logging.Formatter("caslock: %(message)s"))


def path_of(location: str) -> Path:
    """Give the file that the location of a store in SQLite names."""
    return Path(unquote(location.removeprefix(_SQLITE), errors="surrogateescape"))


def default_url() -> str:
    """Name the user's own file, and make its folder; raises `StoreUnavailable` if that can't be made."""
    try:
        from platformdirs import user_state_path  # noqa: PLC0415 - only without --store
    except ModuleNotFoundError as error:
        message = "without --store, platformdirs is needed: pip install 'caslock[cli]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    folder = user_state_path("caslock", appauthor=False)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = f"{folder}, the folder of the default store, can't be made: {error.strerror}"
        raise StoreUnavailable(f"{why}. Name another store with --store or CASLOCK_STORE") from error
    return "sqlite:///" + str(folder / "locks.db").replace("%", "%25").replace("?", "%3F")
