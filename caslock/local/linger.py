"""Keys that this process keeps for a while after their release, so that its next acquire of one takes no request.

Nobody holds what lingers.  It keeps its place in the local queue and its record at the store; it is not renewed, and
nobody is told of its loss.  The next acquire of the same Lock object holds it again (`LockState.resume`), or it is
released (`LockState.give_up`): at its time, for a contender of this process, and at the end of the interpreter.  Chubby
calls this lock caching.

Not in asyncio, where nothing could release the key once its event loop has stopped.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from caslock.process.fork import at_fork

if TYPE_CHECKING:
    from caslock.local.lock_state import LockState
    from caslock.protocol.attempt import Attempt

lingering: dict[Attempt, LockState] = {}
"""The attempts that linger in this process, or are being released after that.  Nothing else has to refer to them."""


def end(attempt: Attempt) -> None:
    """Have it released beside the caller, if it lingers."""
    state = lingering.get(attempt)
    if state is not None:
        attempt.runtime.start(partial(state.give_up, attempt))


at_fork(after_in_child=lingering.clear)  # it is the parent's
