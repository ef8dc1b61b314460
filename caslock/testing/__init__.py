"""For tests: the contract of a store, and stores whose requests fail as planned.

`StoreContract` and the fixtures of `caslock.testing.plugin` need pytest; nothing else does.
"""

from functools import cache
from typing import TYPE_CHECKING

from caslock.testing.drive import on_loop
from caslock.testing.faults import (
    AsyncFaultyStore,
    Fault,
    FaultyStore,
    Request,
    duplicate,
    echo,
    late,
    lose_reply,
    lose_request,
    lose_wake_up,
    raising,
    read_again,
    unsent,
    wake_early,
)
from caslock.testing.store_for_tests import AsyncStoreForTests, StoreForTests

if TYPE_CHECKING:
    from caslock.testing.contract import StoreContract
    from caslock.testing.server_contract import StoreServer

__all__ = [
    "AsyncFaultyStore",
    "AsyncStoreForTests",
    "Fault",
    "FaultyStore",
    "Request",
    "StoreContract",
    "StoreForTests",
    "StoreServer",
    "duplicate",
    "echo",
    "late",
    "lose_reply",
    "lose_request",
    "lose_wake_up",
    "on_loop",
    "raising",
    "read_again",
    "unsent",
    "wake_early",
]


def __getattr__(name: str) -> object:
    """Import pytest only for those who subclass a contract (PEP 562)."""
    if name not in {"StoreContract", "StoreServer"}:
        message = f"module 'caslock.testing' has no attribute {name!r}"
        raise AttributeError(message)
    _rewrite_asserts()
    if name == "StoreContract":
        from caslock.testing.contract import StoreContract  # noqa: PLC0415 - its asserts are rewritten by now

        return StoreContract
    from caslock.testing.server_contract import StoreServer  # noqa: PLC0415 - as above

    return StoreServer


@cache
def _rewrite_asserts() -> None:
    import pytest  # noqa: PLC0415 - see above

    contracts = ("batching", "entry", "life", "listing", "queueing", "server", "version", "watching")
    names = ("steps", *(f"{part}_contract" for part in contracts))
    pytest.register_assert_rewrite(*(f"caslock.testing.{name}" for name in names))
