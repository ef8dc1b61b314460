"""Clean-ups in the background: what an acquire or a release has left at a store that did not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.errors import CaslockError, StoreUnavailable
from caslock.protocol.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Awaitable, Callable

    from caslock.protocol.runtime import Runtime

FIRST_PAUSE: Final = 0.25
"""Seconds before the first background attempt to settle an unanswered request; doubled after each failure."""


class CleanUp(NamedTuple):
    """What is left to do where the store gave no answer."""

    act: Callable[[float], Awaitable[object]]
    """Sends its requests; none begins at or after the moment that it is given."""
    ends: float


async def run_clean_ups(runtime: Runtime, clean_ups: deque[CleanUp]) -> None:
    """Run clean-ups until the store has answered each of them, or its time is over; others may be added meanwhile.

    While the store does not answer, one of them is tried, with growing pauses.  After an answer, the others follow
    one by one, without a pause.
    """
    pause = FIRST_PAUSE
    while clean_ups:
        await runtime.sleep(pause)
        pause = min(2 * pause, LONGEST_WAIT)
        while clean_ups:
            act, ends = tried = clean_ups.popleft()
            now = runtime.now()
            if now >= ends:
                continue
            try:
                await act(now + runtime.patience)
            except StoreUnavailable:
                clean_ups.append(tried)
                break
            except (CaslockError, ValueError):  # refused: the lease ends it
                pass
            pause = FIRST_PAUSE
