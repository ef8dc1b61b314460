"""The steps that tests of the contract have in common.

Times are judged from outside: a test fails only for what the store has certainly done wrong, however slow the machine.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import pytest

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT, WOKEN
from caslock.testing.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.store import Entry, Store

T = TypeVar("T")

LONG: Final = 900.0
"""Seconds of a lease that no test outlives, however slow the machine is."""

SHORT: Final = 0.2
"""Seconds of a lease that a test waits for."""

PATIENT: Final = 10.0
"""A wait that has a reason to end must end within half of these seconds."""

IN_VAIN: Final = 30.0
"""Timeout, in seconds, of such a wait: it takes that long only if it has missed its reason to end."""

PAUSE: Final = 0.1
"""Seconds after which a request that was sent has most likely arrived; a shorter pause only lets a test prove less."""

RECONNECT: Final = 30.0
"""Seconds in which a store must find its way back to a server that answers again."""

MANY: Final = 50
"""How many do the same at once, and how many keys are changed together."""


LASTING: Final = "traits.expires is False"


class Clients(NamedTuple):
    """What each test of the contract is given."""

    mine: Store
    """One client, whose verbs can simply be called."""
    theirs: Store
    """Another client of the same server."""
    key: str
    """A key that no other test uses."""


def absent(answer: Entry | None) -> bool:
    """Whether a removal answers that there is no entry now: by None, or by `WOKEN`."""
    return answer is None or answer == WOKEN


def put(store: Store, key: str, value: bytes, version: int = ABSENT, ttl: float = LONG) -> Entry:
    """Put, and check that it succeeded."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None, f"no entry under {key[:80]!r} after a put at version {version}"
    assert entry.value == value, f"{entry} under {key[:80]!r} after a put at version {version}"
    return entry


def remove(store: Store, key: str, version: int) -> None:
    """Remove, and check that it succeeded."""
    answer = store.invalidate(key, version)
    assert absent(answer), f"{answer} under {key[:80]!r} after a removal of version {version}"


def skip_unless_leases_end(store: Store) -> None:
    """Skip a test of what happens when a lease ends if the store does not end leases by itself."""
    if not store.traits.expires:
        pytest.skip(f"{LASTING}: no entry expires")


def until_expired(store: Store, key: str, ttl: float) -> None:
    """Wait until the store no longer has an entry whose ttl is over."""
    bound = ttl + store.traits.expiry_lag + 5.0
    with Stopwatch() as watch:
        while store.get(key) is not None:
            assert watch.seconds < bound, f"an entry with a ttl of {ttl} s does not expire"
            time.sleep(0.005)


def unanswered(verb: Callable[[], object]) -> None:
    """Call a verb and ignore its answer, as if it were lost."""
    with pytest.raises(StoreUnavailable):
        verb()


def pause() -> None:
    """Sleep for `PAUSE` seconds, not counting delays of the machine, but for no more than ten times as long."""
    with Stopwatch() as watch:
        while (left := PAUSE - watch.seconds) > 0 and watch.elapsed < 10 * PAUSE:
            time.sleep(left)


def in_a_thread(act: Callable[[], T]) -> Future[T]:
    """Call in a thread that nobody has to wait for."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def timed(act: Callable[[], T]) -> Future[tuple[float, T]]:
    """Call in a thread; give how many seconds it took, less what the machine was late by, and what it returned."""

    def call() -> tuple[float, T]:
        with Stopwatch() as watch:
            result = act()
        return watch.seconds, result

    return in_a_thread(call)


def again(ask: Callable[[], T]) -> T:
    """Ask until there is an answer: a server, or this machine, may be slow for a moment."""
    with contextlib.suppress(StoreUnavailable):  # as a rule, which saves the thread of a stopwatch
        return ask()
    with Stopwatch() as watch:
        while True:
            try:
                return ask()
            except StoreUnavailable:
                assert watch.seconds < RECONNECT, f"the server answers, but the store did not in {RECONNECT:g} s"
                time.sleep(0.05)


def at_once(act: Callable[[int], T], times: int = MANY) -> list[T]:
    """Call ``act(0)``, ``act(1)``, ... in as many threads, all at the same moment."""
    start = threading.Barrier(times)

    def one(number: int) -> T:
        start.wait(50)
        return act(number)

    with ThreadPoolExecutor(times) as threads:
        try:
            return list(threads.map(one, range(times)))
        except BaseException:
            start.abort()  # an interrupt may have come before all of them were started: nobody waits for the rest
            raise


class Lease:
    """The lease of one put, and the bounds within which it must end, as seen from outside."""

    def __init__(self, key: str, ttl: float) -> None:
        self.key = key
        self.ttl = ttl

    def begin(self, store: Store, version: int = ABSENT) -> Entry:
        """Put it."""
        self.asked()
        entry = put(store, self.key, b"lease", version, self.ttl)
        self.answered()
        return entry

    def asked(self) -> None:
        """Note that the lease can't have begun before now."""
        self._asked = time.monotonic()

    def answered(self) -> None:
        """Note that the lease has begun by now."""
        self._answered = time.monotonic()

    def may_be_over(self) -> bool:
        """Whether it may have ended by now."""
        return time.monotonic() - self._asked >= self.ttl

    def watch(self, store: Store) -> None:
        """Check that the lease ends, neither too early nor too late."""
        bound = self.ttl + store.traits.expiry_lag
        least = time.monotonic() - self.ttl  # a lease that ended earlier gets all of `expiry_lag` from now on
        with Stopwatch() as watch:
            while True:
                looked = time.monotonic()
                if store.get(self.key) is None:
                    lived = time.monotonic() - self._asked
                    assert lived >= self.ttl, f"a lease of {self.ttl} s was over after {lived:.4f} s"
                    return
                lived = looked - max(self._answered, least) - watch.late  # for the server may be as late
                late = f"a lease of {self.ttl} s was not over after {lived:.3f} s (bound: {bound:.3f} s)"
                assert lived <= bound, late
                time.sleep(0.005)
