"""Clean-ups in the background ask a store that gives no answer rarely, close no store, and outlive no event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import cast

import pytest

from caslock import AsyncLock, Entry, Lock, StoreUnavailable
from caslock.local import thread_renewer
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import FaultyStore, lose_reply
from tests.support.locations import fresh, make_due, observed, present, until
from tests.support.scripted import Scripted, held


class Closing(FaultyStore):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_clean_up_closes_no_store() -> None:
    """Given an acquire without an answer, its record is removed in the background, and the store stays open."""
    memory, key = MemoryStore(), fresh()
    store = Closing(memory)
    store.on("any", range(1, 1000), lose_reply)
    with pytest.raises(StoreUnavailable):
        Lock(store, key).acquire(timeout=0)
    assert observed(memory, key)
    store.heal()
    assert until(lambda: not observed(memory, key))
    assert not store.closed


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("renews", [False, True])
def test_a_closed_loop_is_not_kept_alive(*, renews: bool) -> None:
    """Given a loop that is closed while a lease is held or renewed in it, nothing of caslock refers to it any more."""

    class Slow(AsyncMemoryStore):
        async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if version:
                renewing.append(True)
                await asyncio.sleep(60)
            return await super().put_if_version(key, value, version, ttl)

    def run_a_loop() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # of a task that is still pending
        loop.run_until_complete(main())
        loop.close()
        return weakref.ref(loop)

    async def main() -> None:
        hold = present(await AsyncLock(store, fresh(), ttl=60).acquire())
        if renews:
            make_due(hold._attempt)
        async with asyncio.timeout(60):
            while renews and not renewing:  # noqa: ASYNC110 - the store notes it
                await asyncio.sleep(0.01)

    store, renewing = Slow(), list[bool]()
    lock = AsyncLock(store, fresh())
    closed = run_a_loop()
    gc.collect()
    assert closed() is None
    assert lock.key
    assert bool(renewing) == renews


def test_an_interrupt_as_the_renewer_is_woken_lets_no_later_lease_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next hold wakes it, though its lease is due later than the one that the interrupt has struck."""

    class Alarm:
        rung = 0

        def notify(self) -> None:
            self.rung += 1
            if self.rung == 1:
                raise KeyboardInterrupt

    renewer, alarm = thread_renewer.ThreadRenewer(), Alarm()
    renewer._alarm = cast("threading.Condition", alarm)
    first, second = held(Scripted()), held(Scripted())
    second.lease.due += 5
    renewer._wakes, renewer.is_running = second.lease.due + 60, True
    thread_renewer._renewer = None  # or monkeypatch would later restore one whose thread has ended
    monkeypatch.setattr(thread_renewer, "_renewer", renewer)
    with pytest.raises(KeyboardInterrupt):
        thread_renewer.watch(first)
    thread_renewer.watch(second)
    assert alarm.rung == 2
