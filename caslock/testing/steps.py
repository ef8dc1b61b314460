"""The law of this file: a step of the contract of a store is taken from outside, and a slow machine proves nothing."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import pytest

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT, WOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.store import Entry, Store

T = TypeVar("T")

LONG: Final = 60.0
"""Seconds of a lease that no test outlives."""

SHORT: Final = 0.2
"""Seconds of a lease that a test waits for."""

MANY: Final = 50
"""How many do the same at once, and how many keys travel together."""


def nothing_stands(answer: Entry | None) -> bool:
    """Whether a removal is answered so: by None, or by `WOKEN`."""
    return answer is None or answer == WOKEN


def put(store: Store, key: str, value: bytes, version: int = ABSENT, ttl: float = LONG) -> Entry:
    """Put, and be sure that it has succeeded."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None, f"nothing stands under {key[:80]!r} after a put at {version}"
    assert entry.value == value, f"{entry} stands under {key[:80]!r} after a put at {version}"
    return entry


def until_gone(store: Store, key: str, ttl: float) -> None:
    """Wait for the end of a lease of `ttl` seconds, as the store sees it."""
    give_up = time.monotonic() + ttl + store.traits.overstay + 5.0
    while store.get(key) is not None:
        assert time.monotonic() < give_up, f"a lease of {ttl} s does not end"
        time.sleep(0.005)


def unanswered(verb: Callable[[], object]) -> None:
    """Call a verb that gets no answer."""
    with pytest.raises(StoreUnavailable):
        verb()


def at_once(act: Callable[[int], T], times: int = MANY) -> list[T]:
    """Call ``act(0)``, ``act(1)``, ... in as many threads, all at the same moment."""
    start = threading.Barrier(times)

    def one(number: int) -> T:
        start.wait(30)
        return act(number)

    with ThreadPoolExecutor(times) as threads:
        return list(threads.map(one, range(times)))


class Lease:
    """One lease, and the bounds of what it may last: each seen from outside, so that a slow machine proves nothing."""

    def __init__(self, key: str, ttl: float) -> None:
        """Plan a lease."""
        self.key = key
        self.ttl = ttl

    def begin(self, store: Store, version: int = ABSENT) -> Entry:
        """Put it."""
        self.asked()
        entry = put(store, self.key, b"lease", version, self.ttl)
        self.answered()
        return entry

    def asked(self) -> None:
        """Note that it can't have begun before now."""
        self._asked = time.monotonic()

    def answered(self) -> None:
        """Note that it has begun by now."""
        self._answered = time.monotonic()

    def watch(self, store: Store) -> None:
        """Watch it until it is over."""
        overstay = store.traits.overstay
        while True:
            looked = time.monotonic()
            if store.get(self.key) is None:
                lived = time.monotonic() - self._asked
                assert lived >= self.ttl, f"a lease of {self.ttl} s was over after {lived:.4f} s"
                return
            lived = looked - self._answered
            bound = self.ttl + overstay
            assert lived <= bound, f"a lease of {self.ttl} s still stood after {lived:.3f} s, more than {bound:.3f} s"
            time.sleep(0.005)
