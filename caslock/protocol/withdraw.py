"""Makes the outcome of a failed or interrupted acquire definite: nothing of it is there or can land later."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.errors import NotAcquired, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.protocol.exchange import read, write_surely
from caslock.protocol.life import OVER, WITHDRAWING
from caslock.protocol.limits import PASSES, last_start
from caslock.protocol.record import Observed
from caslock.protocol.writes import FREE_TTL
from caslock.store import ABSENT

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime


_REMAINS: Final = {
    "acquire": "nothing was left behind",
    "adopt": "adopt again; if that raises LockLost, the ticket was used, and nobody has the hold",
}
"""What is certain once a failed attempt was withdrawn."""


class Remnant(NamedTuple):
    """What a failed acquire may have left at the store."""

    text: str
    foreign: bool
    """Somebody else's record is there, and nothing of ours can arrive before it has gone."""


async def give_up(runtime: Runtime, attempt: Attempt, error: BaseException) -> None:
    """Make a failed acquire's outcome definite: nothing of it is there, and no late request of it can arrive.

    In place of a `StoreError` it raises one that says so: `StoreUnavailable` when the lock is certainly not ours and
    no late request can make it so, `OutcomeUnknown` when that could not be made certain in time.  What a hanging store
    leaves unsettled is settled in the background, for as long as a lost request lives.
    """
    attempt.min_hold = 0.0  # nobody has relied on it
    attempt.state = WITHDRAWING
    remnant: Remnant | None = None
    if attempt.writes.in_flight or attempt.lease.record:
        remnant = await _remnant(runtime, attempt, error)
    attempt.state = OVER
    if remnant is not None:
        message = f"could not {attempt.purpose} lock {attempt.key!r}, and a request may still be applied {remnant.text}"
        if isinstance(error, StoreUnavailable) or (isinstance(error, NotAcquired) and not remnant.foreign):
            raise attempt.concerns(OutcomeUnknown(message)) from error
        error.add_note(message)
    elif isinstance(error, StoreError):
        raise attempt.failure(attempt.purpose, error, _REMAINS[attempt.purpose]) from error


async def _remnant(runtime: Runtime, attempt: Attempt, error: BaseException) -> Remnant | None:
    """Withdraw what was sent, or have that done in the background; returns what may be left."""
    interrupted = not isinstance(error, (StoreError, NotAcquired))
    if interrupted:  # its time is over now
        attempt.limit = min(attempt.limit, runtime.now())
    limit = last_start(runtime, attempt.limit)
    try:
        if (interrupted or isinstance(error, StoreUnavailable)) and runtime.now() >= limit:
            raise StoreUnavailable(str(error) or "no answer in time")  # noqa: TRY301 - do not ask again
        return await _withdraw_all(runtime, attempt, limit)
    except StoreUnavailable as trouble:
        runtime.in_background(partial(_withdraw_all, runtime, attempt), FREE_TTL)
        text = (
            f"{_place(runtime, trouble)}({_said(trouble)}); caslock keeps trying to undo it while this process runs, "
            f"and it expires within {attempt.lease.ttl:g} s after it is applied"
        )
    except (StoreError, ValueError) as trouble:
        ends = f"it expires within {attempt.lease.ttl:g} s after that"
        text = f"{_place(runtime, trouble)}and cannot be undone ({_said(trouble)}); {ends}"
    return Remnant(text, foreign=False)


async def _withdraw_all(runtime: Runtime, attempt: Attempt, limit: float) -> Remnant | None:
    """Withdraw a failed acquire; returns what may be left."""
    lease = attempt.lease
    start = Observed(lease.version, lease.record) if lease.record else await read(runtime, attempt, limit)
    _, record = await withdraw(runtime, attempt, start, limit)
    lease.record = None
    if not attempt.writes.may_land(ABSENT) or record is None or record.free:
        return None
    ends = f"it expires within {attempt.lease.ttl:g} s after that"
    return Remnant(f"at {runtime.store.traits.location} once {record} has released it; {ends}", foreign=True)


def _place(runtime: Runtime, error: BaseException) -> str:
    """Return where the store is, unless the text of the error names it."""
    location = runtime.store.traits.location
    return "" if location in str(error) else f"at {location} "


def _said(error: BaseException) -> str:
    """Return an error's text for the middle of a sentence."""
    return str(error).rstrip(".")


async def step_back(runtime: Runtime, attempt: Attempt) -> None:
    """Undo an attempt so far, so that it can try again: nothing of it is at the store.

    No late put of it can land, except while another owner's record is there: see `withdraw`.
    """
    attempt.turn.incoming, attempt.turn.yields = None, 0.0
    if attempt.writes.in_flight:
        limit = last_start(runtime, attempt.limit)
        await withdraw(runtime, attempt, await read(runtime, attempt, limit), limit)
        attempt.lease.forget()
        attempt.writes.releases.clear()  # a later tenure is not released by what ends this one


async def withdraw(runtime: Runtime, attempt: Attempt, observed: Observed, limit: float) -> Observed:
    """Write until no record of the attempt exists and no late put can match; returns what is there then.

    While another owner's record exists we cannot block our own late put; the lease bounds it.  After a failure, no
    request begins at or after `limit`; while the store answers, and the record keeps changing, at least `PASSES` do.
    """
    for number in count():
        if number >= PASSES and runtime.now() >= limit:  # no pause before then, or it would lose the race again
            break
        writes, (version, record), now = attempt.writes, observed, runtime.now()
        writes.forget_dead(now)
        # A late request of ours that expects what is there now may arrive, unless we win that version before it does.
        if not attempt.is_in(record) and not writes.may_land(version):
            return observed
        before = writes.count
        rest = attempt.remainder(record, version, now)
        observed = await write_surely(runtime, attempt, version, rest, limit)
        left = observed.record
        if left is None if rest is None else left is not None and writes.includes(left, before):
            return observed
    message = "its record kept changing until the deadline"
    raise StoreUnavailable(message)
