"""Keys that this process keeps for a while after their release, so that its next acquire of one takes no request.

Nobody holds what lingers.  It keeps its place in the local queue and its record at the store; it is not renewed, and
nobody is told of its loss.  The next acquire of the same Lock object holds it again (`resume`), or it is released
(`give_up`): at its time, for a contender of this process, and at the end of the interpreter.  Chubby calls this lock
caching.

Not in asyncio, where nothing could release the key once its event loop has stopped.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from caslock import observer
from caslock.errors import CaslockError
from caslock.local.reports import call_on_lost, event_of
from caslock.process.fork import at_fork, generation
from caslock.protocol import release
from caslock.protocol.lease import NEVER
from caslock.protocol.life import HELD, LINGERING, OVER

if TYPE_CHECKING:
    from caslock.local.hold import Holding
    from caslock.local.lock_state import LockState
    from caslock.protocol.attempt import Attempt

lingering: dict[Attempt, LockState] = {}
"""The attempts that linger in this process, or are being released after that.  Nothing else has to refer to them."""


def keep(state: LockState, hold: Holding) -> bool:
    """Keep the key for a while in place of a release; False: it is to be released.

    Not while another process is known to want it, nor with a ttl other than the lock's.  From its first release on, a
    tenure goes on for `linger` seconds at the most, however often it is resumed: few stores tell who waits.
    """
    attempt, now, queue = hold._attempt, state.runtime.now(), state._queue
    lease, contention = attempt.lease, attempt.contention
    with state._guard:
        if hold._generation != generation() or attempt.state is not HELD or attempt.levels != [hold]:
            return False
        if not attempt.kept_until:
            attempt.kept_until = now + state.settings.linger
        met = contention is not None and contention.observed.record is not None  # another process has had it
        if met or queue.is_wanted(now) or now >= attempt.lingers_until:
            return False
        if lease.lost or lease.ttl != state.settings.ttl:
            return False
        lingering[attempt] = state
        lease.rest(attempt.lingers_until)
        attempt.state = LINGERING
        state.committed.pop(hold, None)
        attempt.levels.clear()
    state.runtime.watch(attempt)
    if observer.listens():
        observer.tell("released", event_of(attempt, now - lease.began))
    if queue.waiting:  # who came meanwhile has not seen that it lingers
        end(attempt)
    return True


def resume(state: LockState, hold: Holding) -> bool:
    """Hold what lingers.  False: nothing does, its time is over, it was lost, or somebody waits for the key.

    Not for a MultiLock, which may have to wait for an earlier key.
    """
    attempt, now = hold._attempt, state.runtime.now()
    lease = attempt.lease
    with state._guard:
        if attempt.state is not LINGERING or state._queue.waiting or now >= attempt.lingers_until:
            return False
        lease.resume(now)
        if lease.lost:  # only now: a loss after this look is told to the new hold
            lease.reported = True
            return False
        if state.settings.on_lost is not None:
            lease.on_loss.append(partial(call_on_lost, state.settings.on_lost, hold))
        attempt.caller = state.runtime.me()
        attempt.levels.append(hold)
        lingering.pop(attempt, None)  # from here on only its hold refers to it: an interrupt ends it
        attempt.state = HELD
        state.runtime.watch(attempt)  # the renewer may be set only for the end of its lingering
    if observer.listens():
        observer.tell("acquired", event_of(attempt, 0.0))
    return True


def end(attempt: Attempt) -> None:
    """Have it released beside the caller, if it lingers."""
    state = lingering.get(attempt)
    if state is not None:
        attempt.runtime.start(partial(give_up, state, attempt))


async def give_up(state: LockState, attempt: Attempt, limit: float = NEVER) -> None:
    """Release what lingers, unless it is held again; in the background, if that gets no answer."""
    with state._guard:
        lingers = attempt.state is LINGERING and state.generation == generation()
        if lingers:
            attempt.begin_release()
    if not lingers:
        return
    try:
        state._queue.name_successor(attempt, state.runtime.now())
        await release.release_quietly(state.runtime, attempt, limit)
    except (CaslockError, ValueError):
        if attempt.state is not OVER:
            release.release_later(attempt)
    finally:
        state._held.pop(attempt.hold_id, None)
        state._queue.leave(attempt, state.runtime.now())
        # Last: until then, a try with timeout=0 waits for it and is not refused.
        lingering.pop(attempt, None)


at_fork(after_in_child=lingering.clear)  # it is the parent's
