"""Acquire: put, look at what is there, decide; wait while another owner holds the key.

Written once for both APIs, as coroutines that await nothing but the store, the runtime's sleep and a mutex. asyncio
awaits them, the blocking API runs them in the calling thread, and the simulator chooses where they stop.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.contention import LONGEST_PAUSE
from caslock.protocol.exchange import Sent, note_write, read, send, settle, write_surely
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import LONGEST_WAIT, PASSES, last_start
from caslock.protocol.record import NOTHING, Observed
from caslock.store import ABSENT, Entry

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Record
    from caslock.protocol.runtime import Runtime

LATE_WAKE: Final = 0.1
"""Seconds by which a wait at a store may end late: Redis checks ten times a second whether one is over."""

MOST_PASSES: Final = 64
"""How many times one call tries for a key that several may hold: others change the record, though there is a place."""

YIELD_WAIT: Final = 0.1
"""Seconds a process waits behind another that it has just woken."""


async def acquire(
    runtime: Runtime,
    attempt: Attempt,
    timeout: float | None,
    first: Observed | Sent | None = None,
) -> bool:
    """Try until the attempt holds the key or `timeout` seconds (None: forever) have passed.

    `first` is what became of a first put that was sent already.  Unless this returns True, call `give_up`;
    `attempt.contention` then says who holds the key.
    """
    limit = NEVER if timeout is None else runtime.now() + timeout
    observed: Observed | None
    if isinstance(first, Sent):
        write, seen = first
        until = last_start(runtime, attempt.limit)
        observed = seen if isinstance(seen, Observed) else await settle(runtime, attempt, write, seen, until)
    else:
        observed = await _resume(runtime, attempt, limit, first)
    while not (believe(attempt, observed, runtime.now()) or await _try(runtime, attempt, observed)):
        if runtime.now() >= limit:
            return False
        observed = await _wait(runtime, attempt, limit)
        if observed is None and attempt.reads_first:
            began = runtime.now()
            observed = await read(runtime, attempt, last_start(runtime, attempt.limit))
            if attempt.may_take(observed.record):
                await _step_aside(runtime, attempt, began)
        attempt.writes.forget_dead(runtime.now())
    return True


def believe(attempt: Attempt, observed: Observed | None, now: float) -> bool:
    """Believe in the lease if our own put was applied, and is not so old that the lease has to be renewed first."""
    version, record = observed or NOTHING
    if record is None:
        return False
    write = attempt.writes.in_flight.get(record.write)
    if write is None or now - write.at >= write.ttl / 2:
        return False
    attempt.holds_with(record, version, now)
    return True


async def _resume(runtime: Runtime, attempt: Attempt, limit: float, observed: Observed | None) -> Observed | None:
    """Return the answer to a put that another attempt sent for us (a hand-over), or wait out our yield."""
    turn = attempt.turn
    incoming, turn.incoming = turn.incoming, None
    if observed is None and incoming is not None:
        observed = incoming.outcome
    if observed is None and attempt.writes.in_flight:  # the put sent for us got no answer, as our own might
        return await read(runtime, attempt, last_start(runtime, attempt.limit))
    if observed is None and turn.yields and runtime.now() < limit:
        # This process has woken another one, or had the key for long: let others go first.
        if attempt.queues and runtime.queueing is not None:
            return await _put_when_absent(runtime, attempt, YIELD_WAIT, limit)
        await _yield(runtime, attempt, limit)
    return observed


async def _yield(runtime: Runtime, attempt: Attempt, limit: float) -> None:
    """Let other processes go first if this one has just had the key; half as long once one of them has had it.

    Else a process whose requests take longer than the others' would never get a key that they want all the time.
    """
    turn, left = attempt.turn, limit - runtime.now()
    if turn.yields and left > 0:
        pause, turn.yields = random.uniform(0.0, turn.yields), turn.yields / 2  # noqa: S311 - no secret
        await runtime.sleep(min(pause, left))


async def _step_aside(runtime: Runtime, attempt: Attempt, began: float) -> None:
    """Let releases, which never pause, write first: for up to twice as long as the request took that began then.

    Whoever has just written knows first what is there.  So without this, a few who release and acquire a place in
    turn, for less time than a request takes, keep another one from its release for good.
    """
    now = runtime.now()
    longest = min(2 * (now - began), LONGEST_PAUSE, attempt.limit - now)
    if longest > 0:
        await runtime.sleep(random.uniform(0.0, longest))  # noqa: S311 - a pause is no secret


async def _try(runtime: Runtime, attempt: Attempt, observed: Observed | None) -> bool:
    """Write, look who holds the key, and decide; again while the key is ours to take."""
    limit = last_start(runtime, attempt.limit)
    lease = attempt.lease
    record: Record | None = None
    version = ABSENT
    renewed = False
    for number in range(PASSES if attempt.queues else MOST_PASSES):
        began = runtime.now()
        # 1. One request when nobody contends.
        if observed is None:
            if number and began >= limit:
                break
            observed = await write_surely(runtime, attempt, version, attempt.next_record(record, version), limit)
        version, record = observed
        observed = None
        # 2. Ours.  One that is half over before we know of it (a lost reply, a slow answer) is renewed first.
        if record is not None and attempt.holds_by(record):
            now = runtime.now()
            attempt.holds_with(record, version, now)
            left = lease.deadline - now
            if left >= lease.ttl / 2 or (renewed and left > 0):
                return True
            renewed = True
            continue
        # 3. Nobody's, or our owner's: write again, at the version that is there.  Another owner's: busy.
        lease.forget()
        if not attempt.may_take(record):
            announcement = attempt.announcement(record, version)
            if announcement is None:
                break
            observed = await write_surely(runtime, attempt, version, announcement, limit)
        elif number and attempt.reads_first:  # others keep writing
            await _step_aside(runtime, attempt, began)
    if renewed and attempt.may_take(record):  # it is free, but the answers take too long
        message = f"{runtime.store.traits.location} answers too slowly for a ttl of {lease.ttl:g} s"
        raise attempt.concerns(StoreUnavailable(message))
    attempt.contend().meet(Observed(version, record), runtime.now())
    return False


async def _wait(runtime: Runtime, attempt: Attempt, limit: float) -> Observed | None:
    """Wait until the key may be free, never past the end of the lease that is there, nor past `limit`.

    Returns what is there then, if the store could put for us as soon as nothing was there, or if it tells who would
    read next.
    """
    contention = attempt.contend()
    version, holder = contention.observed
    over, longest, queues = False, LONGEST_WAIT, attempt.queues and runtime.queueing is not None
    in_time = limit - LATE_WAKE
    if holder is not None and not holder.foreign:
        ends = attempt.ends(contention)
        over = runtime.now() >= ends
        limit = limit if over else min(limit, ends)
        longest = min(longest, holder.ttl / 3)  # who lives renews as often; who died may end before `ends`
        # The end of a lease wakes nobody who is queued, nor does a release into a free record (a quarantine).
        if queues and not (over or holder.quarantine or holder.kept):
            observed = await _put_when_absent(runtime, attempt, LONGEST_WAIT, limit)
            if observed is not None:
                return observed
    seconds = min(longest, min(limit, in_time) - runtime.now())
    may_watch = seconds > 0 and not (queues or over) and attempt.may_watch
    if may_watch and runtime.watching is not None and contention.watches(version):
        asked = runtime.now()
        with suppress(StoreError):  # a put shows what is wrong
            entry = await runtime.watching.wait_while(attempt.key, version, seconds)
            if attempt.queues:  # else it has let others go first before it asked
                await _yield(runtime, attempt, limit)
            elif isinstance(entry, Entry):
                return attempt.see(entry, asked)
            return None
    pause = contention.pause() if attempt.terms.settings.poll else max(contention.pause(), attempt.least_pause)
    return await attempt.pause(max(0.0, min(pause, limit - runtime.now())))


async def _put_when_absent(runtime: Runtime, attempt: Attempt, longest: float, limit: float) -> Observed | None:
    """Have the store put for us as soon as nothing is there; None: it can't for now, or gave no answer."""
    longest = longest if attempt.terms.settings.poll is None else min(longest, attempt.contend().pause())
    # The lease counts from before the request, so most of it must be left when the wait ends; and a store may be late
    # in ending one.
    seconds = min(longest, attempt.lease.ttl / 3, limit - runtime.now() - LATE_WAKE)
    if seconds <= 0:
        return None
    write = note_write(attempt, ABSENT, attempt.next_record(None, ABSENT), runtime.now())
    try:
        return await send(runtime, attempt, write, seconds)
    except StoreUnavailable as error:  # the next put shows whether this one was applied
        if error.sent and runtime.now() >= last_start(runtime, attempt.limit):
            raise
        return None
