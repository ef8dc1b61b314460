"""Arguments that are checked before any request is made: those that are fine come back, the others are refused."""

from __future__ import annotations

import pytest

from caslock import AsyncMultiLock, Lock, MultiLock
from caslock.local import settings
from caslock.local.settings import Own
from caslock.stores.memory import MemoryStore


def test_a_timeout_of_zero_is_a_number() -> None:
    """One try is 0, or 0.0, and not False; None and -1 wait for ever."""
    assert [settings.check_timeout(value) for value in (0, 0.0, None, -1, 2)] == [0.0, 0.0, None, None, 2.0]
    with pytest.raises(ValueError, match="timeout must be 0 or more"):
        settings.check_timeout(False)  # noqa: FBT003 - the mistake


def test_the_arguments_of_threading_say_how_long_to_wait() -> None:
    """`blocking=False` is one try, whatever the lock's own timeout is."""
    times = [settings.wait_time(5.0, *each[:1], blocking=each[1]) for each in WAITS]
    assert times == [each[2] for each in WAITS]
    with pytest.raises(ValueError, match="can't specify a timeout"):
        settings.wait_time(5.0, 1.0, blocking=False)


WAITS: list[tuple[float | Own, bool, float | None]] = [
    (Own.TIMEOUT, True, 5.0),
    (Own.TIMEOUT, False, 0.0),
    (-1, False, 0.0),
    (-1, True, None),
    (2, True, 2.0),
]


def test_what_is_wrong_is_refused() -> None:
    """With the name of the argument, and what it has to be."""
    with pytest.raises(TypeError, match="on_lost must be callable, or None, not 3"):
        settings.check_callback("on_lost", 3)
    with pytest.raises(TypeError, match="retry must be two numbers"):
        settings.check_retry(5)  # type: ignore[arg-type] # the mistake


def test_locks_that_are_copied_say_what_to_do(memory: MemoryStore) -> None:
    """They name the key or the keys."""
    assert "and the key, " in str(settings.not_copied(Lock(memory, "k")))
    several = MultiLock(memory, ["k"]), AsyncMultiLock(memory, ["k"])
    assert all("and the keys, " in str(settings.not_copied(each)) for each in several)
