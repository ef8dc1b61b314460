"""Which store a command uses: ``--store URL``, ``CASLOCK_STORE``, or a file of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.store import ClosableStore

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


def opened(url: str | None) -> ClosableStore:
    """Make the store; nothing is sent yet."""
    from caslock.connect import connect  # noqa: PLC0415 - not for `--help`

    if url and url.lower().startswith("memory:"):
        raise click.UsageError("memory:// lives inside one process: name a store that processes can share")
    return connect(url or default_url())


def default_url() -> str:
    """Name the user's own file, and make its folder."""
    try:
        from platformdirs import user_state_path  # noqa: PLC0415 - only without --store
    except ModuleNotFoundError as error:
        message = "without --store, platformdirs is needed: pip install 'caslock[cli]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    folder = user_state_path("caslock", appauthor=False)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return "sqlite:///" + str(folder / "locks.db").replace("%", "%25").replace("?", "%3F")
