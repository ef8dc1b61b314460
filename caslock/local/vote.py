"""What a QuorumLock does at one of its stores: ask for a lease, give it back, extend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.errors import NotAcquired, StoreError
from caslock.local.reports import warn_of_missing_vote
from caslock.protocol import acquire, release, renew, withdraw
from caslock.protocol.life import OVER

if TYPE_CHECKING:
    import weakref
    from collections.abc import Awaitable, Callable

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.quorum import Ballot


async def ask(ballot_ref: weakref.ref[Ballot], part: Attempt) -> None:
    """Ask for a lease, unless the acquire was abandoned.

    It refers to the ballot weakly, so a request that hangs does not keep a hold alive that was dropped meanwhile.
    """
    ballot = ballot_ref()
    if ballot is None or not ballot.begin(part):
        return
    del ballot
    part.caller = part.runtime.me()  # not the task that has acquired, whose result may be the hold
    failure = await _failure_of(_take(ballot_ref, part))
    if failure is None:
        return
    failure = await _failure_of(withdraw.give_up(part.runtime, part, failure)) or failure
    ballot = ballot_ref()
    if ballot is not None:
        ballot.end(part, failure)  # raised by `QuorumState._judge`
    if isinstance(failure, StoreError):
        warn_of_missing_vote(part, failure)


async def _take(ballot_ref: weakref.ref[Ballot], part: Attempt) -> None:
    if not await acquire.acquire(part.runtime, part, 0.0):
        raise NotAcquired("held by another")
    ballot = ballot_ref()
    if ballot is None or not ballot.join(part, part.runtime.now()):
        raise NotAcquired("too late")
    part.runtime.watch(part)


async def leave(ballot: Ballot, part: Attempt) -> None:
    """Release a lease; if there is no answer, go on in the background."""
    failure = await _failure_of(release.release(part.runtime, part))
    if part.state is not OVER:
        release.release_later(part)
    ballot.end(part, failure)


async def extend(
    ballot_ref: weakref.ref[Ballot], part: Attempt, ttl: float | None, answer: Callable[[BaseException | None], object]
) -> None:
    """Replace a lease, and answer with what that has raised (None: nothing).  Like `ask`, it keeps no hold alive."""
    answer(await _failure_of(renew.renew(part.runtime, part, ttl)))
    ballot = ballot_ref()
    if ballot is not None:
        ballot.tell()


async def _failure_of(work: Awaitable[object]) -> BaseException | None:
    """Await `work`, and return what it raises, an interrupt or a cancellation included; None: nothing."""
    try:
        await work
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the caller decides
        return error
    return None
