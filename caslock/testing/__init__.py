"""The proof kit: the contract of a store and the laws of a lock as tests, and stores that fail as planned.

The contracts need pytest; nothing else in caslock imports the kit.
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

if TYPE_CHECKING:
    from caslock.testing.contract import StoreContract
    from caslock.testing.locks import LockContract

__all__ = [
    "AsyncFaultyStore",
    "Fault",
    "FaultyStore",
    "LockContract",
    "Request",
    "StoreContract",
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
    """Import pytest only for who subclasses a contract (PEP 562)."""
    if name not in {"LockContract", "StoreContract"}:
        message = f"module 'caslock.testing' has no attribute {name!r}"
        raise AttributeError(message)
    _rewrite_asserts()
    if name == "StoreContract":
        from caslock.testing.contract import StoreContract  # noqa: PLC0415 - its asserts are rewritten by now

        return StoreContract
    from caslock.testing.locks import LockContract  # noqa: PLC0415 - as above

    return LockContract


@cache
def _rewrite_asserts() -> None:
    import pytest  # noqa: PLC0415 - see above

    parts = ("holders", "owners", "scene", "several", "steps", "trials", "waiters")
    contracts = ("batch", "entry", "version", "waiting")
    names = (*parts, *(f"{part}_contract" for part in contracts))
    pytest.register_assert_rewrite(*(f"caslock.testing.{name}" for name in names))
