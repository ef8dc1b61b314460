"""Waiting in a queue by `put_when_absent`: a part of `StoreContract`."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast
from uuid import uuid4

import pytest

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT, BatchingStore, QueueingStore, Removal, Store
from caslock.testing import steps
from caslock.testing.steps import (
    LONG,
    PAUSE,
    SHORT,
    Clients,
    Lease,
    again,
    at_once,
    pause,
    put,
    remove,
    skip_unless_leases_end,
    timed,
    until_expired,
)
from caslock.testing.stopwatch import Stopwatch

if TYPE_CHECKING:
    from caslock.store import Entry

FEW: Final = 5
"""How many wait in one queue."""

TIMES: Final = 3
"""How often a wait is tried that may end early for no reason."""

UNQUEUED: Final = "the store has no put_when_absent"


class QueueingContract:
    """Tests of `put_when_absent`."""

    def test_a_waiter_puts_at_once_where_there_is_no_entry(self, caslock_clients: Clients) -> None:
        """It does not wait if there never was an entry, or if that was removed or has expired."""
        mine, theirs, key = _queueing(caslock_clients)
        never, removed, expired = (f"{key}:{name}" for name in ("never", "removed", "expired"))
        remove(theirs, removed, put(theirs, removed, b"1").version)
        if mine.traits.expires:
            put(theirs, expired, b"1", ttl=SHORT)
            until_expired(mine, expired, SHORT)
        for name in (never, removed, expired):
            Waiter(mine, name).must_put_soon(theirs)

    def test_a_removal_ends_a_wait(self, caslock_clients: Clients) -> None:
        """A waiter puts when the entry is removed, by either client, alone or with others."""
        mine, theirs, key = _queueing(caslock_clients)
        for number, remover in enumerate((theirs, mine) * 2):
            name = f"{key}:{number}"
            entry = put(mine, name, b"1")
            waiter = Waiter(mine, name)
            pause()
            together = isinstance(remover, BatchingStore) and number > 1
            if not (together and cast("BatchingStore", remover).invalidate_many([Removal(name, entry.version)])):
                remove(remover, name, entry.version)
            answer = waiter.must_put_soon(theirs)
            assert answer.version > entry.version or not mine.traits.fences

    def test_a_waiter_keeps_its_place_when_the_entry_is_overwritten(self, caslock_clients: Clients) -> None:
        """A put ends no wait: the waiter waits on, for the removal of whichever version there is."""
        mine, theirs, key = _queueing(caslock_clients)

        def keeps(name: str) -> bool:
            entry = put(theirs, name, b"1")
            waiter = Waiter(mine, name)
            for value in (b"2", b"3"):
                pause()
                entry = put(theirs, name, value, entry.version)
            pause()
            waits = not waiter.over
            remove(theirs, name, entry.version)
            took, answer = waiter.result()
            return waits and took < steps.PATIENT / 2 and answer is not None and answer.value == waiter.value

        assert any(keeps(f"{key}:{number}") for number in range(TIMES)), "every put ends a wait"

    def test_each_removal_wakes_one_waiter(self, caslock_clients: Clients) -> None:
        """Of two waiters the first removal wakes no more than one, and the next one the other."""
        mine, theirs, key = _queueing(caslock_clients)

        def wakes_one(name: str) -> bool:
            put(mine, name, b"1")
            waiters = [Waiter(client, name) for client in (mine, theirs)]
            pause()
            one_each = True
            for removals in range(1, int(steps.PATIENT / PAUSE / 2)):
                observed = mine.get(name) or theirs.put_if_version(name, b"1", ABSENT, LONG)
                assert observed is not None
                remove(mine, name, observed.version)
                pause()
                over = sum(waiter.over for waiter in waiters)
                one_each &= over <= removals  # false also if a waiter came only after the removal
                if over == len(waiters):
                    break
            tooks = [waiter.result()[0] for waiter in waiters]
            assert max(tooks) < steps.PATIENT / 2 + PAUSE * 5, f"two waiters were woken after {tooks} s"
            return one_each

        assert any(wakes_one(f"{key}:{number}") for number in range(TIMES)), "each time, a removal has woken two"

    def test_waiters_are_served_in_the_order_in_which_they_came(self, caslock_clients: Clients) -> None:
        """Of five that came one after the other each removal serves the one that has waited longest."""
        mine, theirs, key = _queueing(caslock_clients)

        def order(name: str) -> list[int]:
            observed: Entry | None = put(mine, name, b"1")
            waiters = list[Waiter]()
            for number in range(FEW):
                waiters.append(Waiter((mine, theirs)[number % 2], name, 2 * steps.PATIENT))
                pause()
            values, served = [waiter.value for waiter in waiters], list[int]()
            while observed is not None and len(served) < FEW:
                remove(theirs, name, observed.version)
                observed = _next(mine, name, steps.PATIENT / 2)
                if observed is not None:
                    served.append(values.index(observed.value))
            return served

        orders = list[list[int]]()
        while list(range(FEW)) not in orders:
            assert len(orders) < TIMES, f"those who came as 0, 1, 2, ... were served in the orders {orders}"
            orders.append(order(f"{key}:{len(orders)}"))

    def test_ten_waiters_take_turns(self, caslock_clients: Clients) -> None:
        """Of ten that put, and remove what they have put, one has the entry at a time, and all have their turn."""
        mine, theirs, key = _queueing(caslock_clients)
        inside = threading.Lock()

        def take_a_turn(number: int) -> None:
            client, value = (mine, theirs)[number % 2], b"%d" % number
            observed = again(partial(client.put_if_version, key, value, ABSENT, LONG))
            while observed is None or observed.value != value:
                try:
                    observed = client.put_when_absent(key, value, LONG, steps.IN_VAIN)
                except StoreUnavailable as unavailable:
                    assert not unavailable.sent  # noqa: PT017 - too many wait already
                    time.sleep(PAUSE / 10)
            assert inside.acquire(blocking=False), "two have the entry at once"
            time.sleep(PAUSE / 20)  # so that the others begin to wait
            assert again(partial(client.get, key)) == observed
            inside.release()
            again(partial(client.invalidate, key, observed.version))

        with Stopwatch() as watch:
            at_once(take_a_turn, 10)
        assert watch.seconds < steps.PATIENT, f"ten turns took {watch.seconds:.3f} s"
        assert again(partial(mine.get, key)) is None

    def test_a_wait_in_a_queue_ends_at_its_timeout(self, caslock_clients: Clients) -> None:
        """While nothing is removed a wait ends at its timeout, not much later, and nothing of it lands afterwards."""
        mine, theirs, key = _queueing(caslock_clients)
        entry = put(theirs, key, b"1")
        with Stopwatch() as watch:
            waiters = [Waiter(mine, key, SHORT) for _ in range(TIMES)]
            outcomes = [waiter.result() for waiter in waiters]
        assert max(took for took, _ in outcomes) < SHORT + steps.PATIENT / 2, f"waits of {SHORT} s: {outcomes}"
        assert watch.elapsed >= 0.9 * SHORT, f"waits of {SHORT} s: {outcomes}"
        assert {answer for _, answer in outcomes} == {entry} == {mine.get(key)}

        remove(theirs, key, entry.version)
        pause()
        assert mine.get(key) is None, "a wait that was over has put"

    def test_a_waiter_puts_at_its_timeout_if_the_entry_has_expired(self, caslock_clients: Clients) -> None:
        """An expiry need not wake anybody, but at its timeout at the latest a waiter puts."""
        mine, theirs, key = _queueing(caslock_clients)
        skip_unless_leases_end(mine)
        timeout = 2 * SHORT + mine.traits.expiry_lag

        def puts(name: str) -> bool:
            put(theirs, name, b"1", ttl=SHORT)
            waiter = Waiter(mine, name, timeout)
            took, answer = waiter.result()
            assert took < timeout + steps.PATIENT / 2
            return answer is not None and answer.value == waiter.value and answer == theirs.get(name)

        assert any(puts(f"{key}:{number}") for number in range(TIMES)), "no waiter puts where the entry has expired"

    def test_the_lease_of_a_waiter_begins_with_its_write(self, caslock_clients: Clients) -> None:
        """The ttl counts from the end of the wait, not from its beginning."""
        mine, theirs, key = _queueing(caslock_clients)
        skip_unless_leases_end(mine)
        entry = put(theirs, key, b"1")
        waiter, lease = Waiter(mine, key, ttl=SHORT), Lease(key, SHORT)
        time.sleep(1.5 * SHORT)
        lease.asked()
        remove(theirs, key, entry.version)
        _, answer = waiter.result()
        lease.answered()
        assert answer is not None
        assert answer.value == waiter.value
        lease.watch(theirs)


class _Queueing(Store, QueueingStore, Protocol):
    """A store with `put_when_absent`."""


def _queueing(clients: Clients) -> tuple[_Queueing, _Queueing, str]:
    if not isinstance(clients.mine, QueueingStore) or not isinstance(clients.theirs, QueueingStore):
        pytest.skip(UNQUEUED)
    return cast("tuple[_Queueing, _Queueing, str]", clients)


def _next(store: Store, key: str, seconds: float) -> Entry | None:
    """Give the entry as soon as there is one, or None after so many seconds."""
    end = time.monotonic() + seconds
    while (observed := store.get(key)) is None and time.monotonic() < end:
        time.sleep(0.002)
    return observed


class Waiter:
    """One that waits, in a thread, to put a value of its own."""

    def __init__(self, store: QueueingStore, key: str, timeout: float | None = None, *, ttl: float = LONG) -> None:
        """Begin to wait, for `IN_VAIN` seconds unless `timeout` is given."""
        self.value: bytes = uuid4().bytes
        self._key = key
        seconds = steps.IN_VAIN if timeout is None else timeout
        self._outcome = timed(lambda: store.put_when_absent(key, self.value, ttl, seconds))

    @property
    def over(self) -> bool:
        """Whether the wait has ended."""
        return self._outcome.done()

    def result(self) -> tuple[float, Entry | None]:
        """Wait for the end; give how many seconds the wait took, and its answer."""
        return self._outcome.result(60)

    def must_put_soon(self, store: Store) -> Entry:
        """Check that the wait ends soon, and that its value is under the key then."""
        took, answer = self.result()
        assert took < steps.PATIENT / 2, f"the wait for {self._key} took {took:.3f} s"
        assert answer is not None
        assert answer.value == self.value
        assert answer == store.get(self._key)
        return answer
