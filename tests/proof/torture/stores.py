"""Stores that are right, or broken in the ways that broke locks in the field: workers of torture make them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any, Final

from caslock import Entry
from caslock.local.multi import MultiAcquire
from caslock.protocol.shared_attempt import ReadWriteAttempt
from caslock.protocol.shares import READS, Seen
from caslock.stores.sqlite import SQLiteStore
from caslock.verify.plan import SEVERAL

FILE: Final = "CASLOCK_BROKEN_DB"
"""The environment variable that names the file of their locks."""


class Plain(SQLiteStore):
    """Is right, and keeps its locks in the file that the test names."""

    def __init__(self) -> None:
        super().__init__(os.environ[FILE])


class LooksThenRemoves(Plain):
    """Removes in two requests: it looks whether it is still its own, and then removes whatever is there."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        observed = self.get(key)
        if observed is None or observed.version != version:
            return observed
        time.sleep(random.uniform(0, 0.2))
        observed = self.get(key)
        return None if observed is None else super().invalidate(key, observed.version)


class EndsLeasesEarly(Plain):
    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version, 0.6 * ttl)


class NeverEndsLeases(Plain):
    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version, 3600 + ttl)


class Apart:
    """Nothing travels together."""

    put_many: Any = staticmethod(lambda _: None)
    invalidate_many = put_many


class KeepsSeveral(Apart, Plain):
    """Never ends the leases of MultiLocks, and says of each of their releases that it has removed the record."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version, 3600 if SEVERAL in key else ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        return None if SEVERAL in key else super().invalidate(key, version)


class FencesByChance(Plain):
    """Its versions don't grow, though it says so: they are its own, with a random number before them."""

    def _before(self, entry: Entry | None) -> Entry | None:
        dice = random.Random(entry.version if entry else 0)
        return entry and entry._replace(version=entry.version + (dice.randrange(1 << 20) << 60))

    def get(self, key: str) -> Entry | None:
        return self._before(super().get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return self._before(super().put_if_version(key, value, version & ((1 << 60) - 1), ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        return self._before(super().invalidate(key, version & ((1 << 60) - 1)))


class Hangs(Plain):
    """Gives no worker an answer, ever."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        threading.Event().wait()
        return super().put_if_version(key, value, version, ttl)


class Stops(Plain):
    """Stops the worker that asks it."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().put_if_version(key, value, version, ttl)


def queues_for_every_key_first() -> Plain:
    """Make one that is not broken, and have this worker's MultiLocks queue for every key before they wait for one."""
    from tests.proof.test_simulate_bites import take_every_turn_first  # noqa: PLC0415 - it takes long

    MultiAcquire.acquire = take_every_turn_first  # type: ignore[assignment, method-assign] # a mutant
    return Plain()


def takes_places_early() -> Plain:
    """Make one that is not broken, and have this worker take other holders of a semaphore for dead at once."""
    over = Seen.over
    Seen.over = lambda seen, share, now: over(seen, share, now) - share.ttl  # type: ignore[assignment, method-assign] # a mutant
    return Plain()


def reads_beside_writers() -> Plain:
    """Make one that is not broken, and have this worker read whoever writes."""
    ReadWriteAttempt._has_place = lambda attempt, others: attempt.role == READS or not others  # type: ignore[assignment, method-assign] # as above
    return Plain()
