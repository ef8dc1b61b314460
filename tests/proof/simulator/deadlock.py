"""Finds contenders that wait for each other.

A contender waits at the store for the hold that it has seen there, or in the local queue of its process for all
attempts that are inside or wait before it.  One that waits for no waiting contender goes on at some time, and
releases; the rest can move only when a lease ends or a timeout is over.

A record that nobody can release any more (of a hold that is lost or whose client was killed, or of a late request) is
no deadlock: only its lease can end it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from caslock.local import linger
from caslock.protocol.life import HAD, OVER
from caslock.protocol.shares import READS, WAITS, WRITES
from tests.proof.simulator.runtime import Event
from tests.proof.simulator.waits import Asking, Blocked, Lined, Listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.protocol.attempt import Attempt
    from tests.proof.simulator.client import Client, NamedLockState
    from tests.proof.simulator.run import Run


def deadlocked(run: Run) -> dict[Client, set[Client]]:
    """Return the clients that wait for each other, or for one that does, and for whom each of them waits."""
    attempts = sorted(run.attempts(), key=lambda attempt: attempt.state is not OVER)  # the last one counts
    owners = {attempt.hold_id: cast("Client", attempt.caller) for attempt in attempts if not _ends(attempt)}
    waiting: dict[Client, set[Client]] = {}
    finishing = {flow.client for flow in run.flows.values() if flow.finishes}
    for client in run.clients:
        if client in finishing:  # it releases or withdraws something
            continue
        renewers = {renewer for renewer in _kept_by(run, client, owners) if renewer.alive and renewer is not client}
        if renewers:
            waiting[client] = renewers
    while going := [client for client, renewers in waiting.items() if renewers.isdisjoint(waiting)]:
        for client in going:
            del waiting[client]
    return waiting


def _ends(attempt: Attempt) -> bool:
    return attempt in linger.lingering or _is_lost(attempt)


def _is_lost(attempt: Attempt) -> bool:
    """Whether it was held, and its lease is over for its holder."""
    lease, now = attempt.lease, cast("Client", attempt.caller).process.now()
    return bool(lease.lost) or (bool(attempt.levels) and now >= lease.deadline)


def _kept_by(run: Run, client: Client, owners: dict[str, Client]) -> Iterator[Client]:
    """Return those that a client waits for."""
    flow = run.flows.get(client.name)
    if flow is None or flow.waits.ready(client.process.now()):
        return
    # A client that has lost one of several keys keeps the others until it learns of that, and that is soon.
    if any(_is_lost(hold._attempt) or hold._attempt.hold_id in run.judge.broken for hold in client.holding):
        return
    waits = flow.waits
    # A request under way, or a renewal or release that goes on, does not wait for a waiting client.
    if isinstance(waits, Blocked) or (isinstance(waits, Asking) and not isinstance(waits, Lined)):
        return
    for state in run.states:
        for attempt in state.attempts.values():
            if attempt.caller is not client:
                continue
            if not isinstance(waits, Listening):
                yield from _at_the_store(run, attempt, owners)
            elif attempt.turn.event is waits.event:
                yield from _in_the_queue(state, attempt)


def _at_the_store(run: Run, attempt: Attempt, owners: dict[str, Client]) -> Iterator[Client]:
    """Return who holds the key of an attempt, if the attempt has seen that."""
    lease = run.store.observed(attempt.key, run.now)
    holder = None if attempt.contention is None else attempt.contention.observed.record
    if lease is None or holder is None or lease.record.owner == attempt.owner or attempt.state in HAD:
        return
    if not set(holder.holds).isdisjoint(lease.record.holds):
        writes = getattr(attempt, "role", READS) == WRITES  # those who wait to write do not wait for each other
        waits = {share.hold for share in lease.record.shares if writes and share.slot == WAITS}
        yield from (owners[hold] for hold in lease.record.holds if hold in owners and hold not in waits)


def _in_the_queue(state: NamedLockState, attempt: Attempt) -> Iterator[Client]:
    """Return who is inside the local queue, or waits before an attempt; an attempt joins those of its owner at once."""
    inside, waiting = state.queued
    if attempt not in waiting:
        return
    past = [other for other in inside if other is not None]
    joins = attempt.shared and past and all(other.owner == attempt.owner for other in past)
    for other in past if joins else [*past, *waiting[: waiting.index(attempt)]]:
        if not attempt.shared or other.owner != attempt.owner or other.hold_id.startswith(attempt.siblings):
            yield cast("Client", other.caller)


def forgotten(run: Run) -> Attempt | None:
    """Return an attempt that has its turn in its process, or could have it, and was not woken."""
    for state in run.states:
        inside, waiting = state.queued
        for attempt in [
            *(attempt for attempt in inside if attempt is not None and not attempt.turn.awaits_hand_over),
            *waiting[: not inside],
        ]:
            event = attempt.turn.event
            if (
                isinstance(event, Event)
                and not attempt.runtime.ended(attempt)
                and state.process.alive
                and not event.flag
            ):
                return attempt
    return None
