"""The law of this file: who waits stands in line until a removal lets it put, or its timeout does."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT, BatchingStore, Removal, WakingStore
from caslock.testing.steps import LONG, SHORT, Lease, at_once, nothing_stands, put, until_gone

if TYPE_CHECKING:
    from caslock.store import Entry, Store

WAITED: Final = b"waited"
"""What is put by one that waits."""

PATIENT: Final = 4.0
"""Seconds of a wait that is to end long before: by half of them."""

PAUSE: Final = 0.1
"""Seconds in which what was begun is most likely under way, and what was set off has most likely happened."""


class WaitingContract:
    """Waiting for a key: a part of `caslock.testing.StoreContract`."""

    def test_who_waits_where_nothing_stands_puts_at_once(self, mine: Store, theirs: Store, key: str) -> None:
        """Where nothing ever stood, or it was removed or has expired, it puts at once and answers as a put does."""
        if not isinstance(mine, WakingStore):
            return
        never, removed, expired = (f"{key}:{name}" for name in ("never", "removed", "expired"))
        entry = put(theirs, removed, b"stood")
        assert nothing_stands(theirs.invalidate(removed, entry.version))
        put(theirs, expired, b"stood", ttl=SHORT)
        until_gone(mine, expired, SHORT)

        for name in (never, removed, expired):
            took, answer = Waiter(mine, name).result()
            assert took < PATIENT / 2, f"{name} was waited for {took:.3f} s"
            assert answer is not None
            assert answer.value == WAITED
            assert answer == theirs.get(name)

    def test_a_removal_ends_a_wait(self, mine: Store, theirs: Store, key: str) -> None:
        """Who waits puts when what stands is removed, by another client or by its own, alone or with others."""
        if not isinstance(mine, WakingStore):
            return
        for number, remover in enumerate((theirs, mine) * 2):
            name = f"{key}:{number}"
            entry = put(mine, name, b"stands")
            waiter = Waiter(mine, name)
            time.sleep(PAUSE)  # were it too short, nothing would stand when it comes, and the test prove less
            answers = None
            if isinstance(remover, BatchingStore) and number >= len((theirs, mine)):
                answers = remover.invalidate_many([Removal(name, entry.version)])
            if answers is None:
                assert nothing_stands(remover.invalidate(name, entry.version))
            took, answer = waiter.result()
            assert took < PATIENT / 2, f"who waited for {name} was not woken for {took:.3f} s"
            assert answer is not None
            assert answer.value == WAITED
            assert answer == theirs.get(name)
            assert answer.version > entry.version or not mine.traits.fences

    def test_who_waits_goes_on_when_another_version_stands(self, mine: Store, theirs: Store, key: str) -> None:
        """A put wakes nobody: who waits stays in line while what stands is overwritten, until that is removed."""
        if not isinstance(mine, WakingStore):
            return
        waking = mine

        def goes_on(name: str) -> bool:
            standing = put(theirs, name, b"0")
            waiter = Waiter(waking, name)
            for value in (b"1", b"2"):
                time.sleep(PAUSE)  # were it too short, the test would prove less
                standing = put(theirs, name, value, standing.version)
            time.sleep(PAUSE)  # as above
            went_on = not waiter.over
            assert nothing_stands(theirs.invalidate(name, standing.version))
            took, answer = waiter.result()
            return went_on and took < PATIENT / 2 and answer is not None and answer.value == WAITED

        # One may end early for no reason.
        assert any(goes_on(f"{key}:{number}") for number in range(3)), "whoever waits is told of every put"

    def test_each_removal_wakes_one(self, mine: Store, theirs: Store, key: str) -> None:
        """Of two that wait for one key, the first removal wakes no more than one, and the next the other."""
        if not isinstance(mine, WakingStore) or not isinstance(theirs, WakingStore):
            return
        put(mine, key, b"stands")
        waiters = [Waiter(client, key) for client in (mine, theirs)]
        time.sleep(PAUSE)  # were it too short, who comes late would find nothing there, and the test prove less
        for removals in range(1, int(PATIENT / PAUSE / 2)):
            standing = mine.get(key) or theirs.put_if_version(key, b"stands", ABSENT, LONG)
            assert standing is not None
            assert nothing_stands(mine.invalidate(key, standing.version))
            time.sleep(PAUSE)  # were it too short, the test would prove less
            over = sum(waiter.over for waiter in waiters)
            assert over <= removals, "one removal has woken two"
            if over == len(waiters):
                break

        tooks = [took for took, _ in (waiter.result() for waiter in waiters)]
        assert max(tooks) < PATIENT / 2 + PAUSE * 5, f"two that waited were woken after {tooks} s"

    def test_who_wait_take_turns(self, mine: Store, theirs: Store, key: str) -> None:
        """Ten that wait for one key, and put when it is removed, stand there one at a time, and all come to it."""
        clients, inside = (mine, theirs), threading.Lock()

        def take_a_turn(number: int) -> float:
            client, value, began = clients[number % 2], b"%d" % number, time.monotonic()
            assert isinstance(client, WakingStore)
            standing = client.put_if_version(key, value, ABSENT, LONG)
            while standing is None or standing.value != value:
                try:
                    standing = client.put_when_free(key, value, LONG, PATIENT)
                except StoreUnavailable as unavailable:
                    assert not unavailable.sent  # noqa: PT017 - too many wait already
                    time.sleep(PAUSE / 10)
            assert inside.acquire(blocking=False), "two stand there at once"
            time.sleep(PAUSE / 20)  # so that the others come to wait
            assert client.get(key) == standing
            inside.release()
            client.invalidate(key, standing.version)
            return time.monotonic() - began

        if all(isinstance(client, WakingStore) for client in clients):
            tooks = at_once(take_a_turn, 10)
            assert max(tooks) < PATIENT, f"ten turns took up to {max(tooks):.3f} s"
            assert mine.get(key) is None

    def test_a_wait_ends_in_time(self, mine: Store, theirs: Store, key: str) -> None:
        """While nothing is removed a wait lasts for its timeout and no longer; nothing of it lands afterwards."""
        if not isinstance(mine, WakingStore):
            return
        entry = put(theirs, key, b"stands")
        outcomes = (Waiter(mine, key, SHORT).result() for _ in range(3))  # one may end early for no reason
        assert any(lasts(took) and answer == entry for took, answer in outcomes), f"no wait lasts for {SHORT} s"

        assert mine.get(key) == entry
        assert nothing_stands(theirs.invalidate(key, entry.version))
        time.sleep(PAUSE)  # were it too short, the test would prove less
        assert mine.get(key) is None, "a wait that was over has put"

    def test_who_has_waited_through_a_lease_puts(self, mine: Store, theirs: Store, key: str) -> None:
        """The end of a lease need wake nobody, but at its timeout at the latest a waiter puts where nothing stands."""
        if not isinstance(mine, WakingStore):
            return
        waking, timeout = mine, 2 * SHORT + mine.traits.overstay

        def puts(name: str) -> bool:
            put(theirs, name, b"stands", ttl=SHORT)
            took, answer = Waiter(waking, name, timeout).result()
            assert took < timeout + PATIENT / 2
            return answer is not None and answer.value == WAITED and answer == theirs.get(name)

        # One may end early for no reason.
        assert any(puts(f"{key}:{number}") for number in range(3)), (
            "nobody has put at its timeout, though nothing stood"
        )

    def test_the_lease_of_who_has_waited_begins_when_it_is_written(self, mine: Store, theirs: Store, key: str) -> None:
        """The ttl counts from the moment at which the wait ends, not from that at which it began."""
        if not isinstance(mine, WakingStore):
            return
        entry = put(theirs, key, b"stands")
        waiter, lease = Waiter(mine, key, ttl=SHORT), Lease(key, SHORT)
        time.sleep(1.5 * SHORT)
        lease.asked()
        assert nothing_stands(theirs.invalidate(key, entry.version))
        _, answer = waiter.result()
        lease.answered()
        assert answer is not None
        assert answer.value == WAITED
        lease.watch(theirs)


class Waiter:
    """One that waits to put `WAITED`, in a thread of its own."""

    def __init__(self, store: WakingStore, key: str, timeout: float | None = None, *, ttl: float = LONG) -> None:
        """Begin to wait, for `PATIENT` seconds if nothing else is said."""
        self._outcome: Future[tuple[float, Entry | None]] = Future()

        def wait() -> None:
            begun = time.monotonic()
            try:
                answer = store.put_when_free(key, WAITED, ttl, PATIENT if timeout is None else timeout)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                self._outcome.set_exception(error)
            else:
                self._outcome.set_result((time.monotonic() - begun, answer))

        threading.Thread(target=wait, daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether it waits no more."""
        return self._outcome.done()

    def result(self) -> tuple[float, Entry | None]:
        """Wait for its end, and tell how many seconds it has waited, and what its answer was."""
        return self._outcome.result(60)


def lasts(took: float) -> bool:
    """Whether that is how long a wait of `SHORT` seconds may take."""
    return 0.9 * SHORT <= took < SHORT + PATIENT / 2
