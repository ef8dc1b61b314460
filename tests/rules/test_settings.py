"""Arguments that are checked before any request is made: those that are fine come back, the others are refused."""

from __future__ import annotations

import pytest

from caslock.local import settings
from caslock.local.settings import Own


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
