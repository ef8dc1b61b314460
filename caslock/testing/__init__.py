"""The proof kit: the contract of a store and the laws of a lock as tests, and stores that fail as planned.

It needs pytest; nothing else in caslock imports it.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"caslock.testing.{name}_contract" for name in ("batch", "entry", "version", "waiting")),
    *(f"caslock.testing.{name}" for name in ("holders", "owners", "scene", "several", "steps", "trials", "waiters")),
)

from caslock.testing.contract import StoreContract  # noqa: E402 - its asserts are to be rewritten
from caslock.testing.drive import on_loop  # noqa: E402 - as above
from caslock.testing.faults import (  # noqa: E402 - as above
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
from caslock.testing.locks import LockContract  # noqa: E402 - as above

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
