"""Holds that are handed over to another process by a ticket, and adopted there; see `caslock.protocol.transfer`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, TypeVar, cast

from caslock import observer
from caslock.errors import StoreError
from caslock.local.hold import Holding
from caslock.local.reports import event_of
from caslock.protocol import transfer
from caslock.protocol.life import OVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.local.lock_state import LockState
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.transfer import Adoption, Ticket

H = TypeVar("H", bound=Holding)


async def hand_over(hold: Holding) -> str:
    """Hand a hold over to whoever gets the ticket that this returns; after an error it is held as before."""
    state, attempt = hold._state, hold._attempt
    _check_can_hand_over(hold)  # first: a forked child may wait for a mutex of its parent for ever
    async with attempt.mutex:  # no renewal writes our own hold id over the ticket's
        _check_can_hand_over(hold)
        try:
            ticket = await transfer.hand_over(state.runtime, attempt)
        except StoreError as error:
            raise attempt.failure("hand over", error, "no ticket was made") from error
        with state._guard:
            _check_can_hand_over(hold)  # its thread may have entered it again meanwhile, or another has released it
            attempt.begin_release()
            state._held.pop(attempt.hold_id, None)
            attempt.hold_id = ticket.hold
            state._held[ticket.hold] = weakref.ref(attempt)  # until it is told
            attempt.state = OVER
    state._end(hold)
    return str(ticket)


def _check_can_hand_over(hold: Holding) -> None:
    """Raise RuntimeError if the hold was re-entered or is part of a MultiHold, `NotHeld` if it is not the caller's."""
    hold._mine()
    levels = len(hold._attempt.levels)
    if levels > 1:
        message = f"lock {hold.key!r} is held {levels} times by this thread or task: release the inner holds first"
        raise RuntimeError(message)
    if hold._state.committed.get(hold, True):
        message = f"a hold of a MultiLock can't be handed over: acquire {hold.key!r} with a Lock of its own"
        raise RuntimeError(message)


def begin(state: LockState, make: Callable[[LockState, Attempt], H], ticket: Ticket) -> H:
    """Return a hold for `adopt`, of the type `make`; nothing is sent."""
    kind: type[Attempt] = transfer.Adoption
    if ticket.permits:
        from caslock.protocol.shared_transfer import SharedAdoption  # noqa: PLC0415 - seldom used

        kind = SharedAdoption
    attempt = cast("Adoption", state.begun()._attempt(kind))
    attempt.ticket, attempt.min_hold = ticket, ticket.min_hold
    return make(state, attempt)


async def adopt(hold: H) -> H:
    """Take over the hold of a ticket.  After an error we hold nothing of it; after an interrupt, call `undo`."""
    state, attempt = hold._state, cast("Adoption", hold._attempt)
    began = state.runtime.now()
    # Who is inside the local queue may wait for this very hold, so the adoption does not wait for its turn.
    state._queue.enter(attempt, began)
    try:
        await transfer.adopt(state.runtime, attempt)
    except Exception as error:
        await state.undo(hold, error)
        raise
    state._hold(hold)
    if observer.listens():
        observer.tell("adopted", event_of(attempt, state.runtime.now() - began))
    return hold
