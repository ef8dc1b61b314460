"""Bugs that an adversarial review once found stay fixed; each docstring says what is right."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from caslock import (
    AsyncHold,
    AsyncLock,
    CaslockError,
    Lock,
    LockLost,
    MultiLock,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    StoreUnavailable,
)
from caslock.local.lock_state import LockState
from caslock.protocol.record import Record, decode, encode
from caslock.store import Entry
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import FaultyStore, lose_reply, lose_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from caslock import Entry, Hold
    from caslock.protocol.attempt import Terms


def eventually(condition: Callable[[], object], seconds: float = 3) -> bool:
    """Ask until it is so, or the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        threading.Event().wait(0.005)
    return True


async def turns_until(condition: Callable[[], object]) -> None:
    """Let the loop turn until it is so."""
    async with asyncio.timeout(3):
        while not condition():  # noqa: ASYNC110 - the protocol sets no event when it has renewed
            await asyncio.sleep(0)


def held(lock: Lock) -> Hold:
    """Acquire what is free."""
    hold = lock.acquire(timeout=0)
    assert hold is not None
    return hold


def test_a_hold_whose_release_has_begun_is_not_held() -> None:
    """After a release without an answer nothing says that it is still held, and the release can be called again."""
    memory = MemoryStore()
    faulty = FaultyStore(memory)
    hold = held(Lock(faulty, "key", retry=(0, 0)))
    faulty.on("invalidate", 1, lose_reply)
    faulty.on("get", 1, lose_reply)
    with pytest.raises(StoreUnavailable) as caught:
        hold.release()
    assert caught.value.__notes__ == ["Call release() again; otherwise the lease of 'key' expires within 30 s."]
    other = held(Lock(memory, "key"))
    with pytest.raises(NotHeld):
        hold.ensure_held()
    with pytest.raises(NotHeld):
        hold.extend(60)
    assert hold.remaining() == 0
    hold.release()
    other.ensure_held()


def test_a_released_hold_has_nothing_remaining() -> None:
    """A loop on `remaining` ends when another thread releases the hold."""
    hold = held(Lock(MemoryStore(), "key"))
    assert hold.remaining() > 20
    hold.release()
    assert hold.remaining() == 0


def test_force_release_spares_the_next_holder() -> None:
    """When the reply of a `force_release` is lost and somebody else has acquired meanwhile, that hold stays."""
    memory = MemoryStore()
    first = held(Lock(memory, "key"))
    newcomers: list[Hold] = []

    class Meanwhile:
        """Applies the `force_release`, lets somebody in, and loses the reply."""

        traits = memory.traits
        get = staticmethod(memory.get)
        invalidate = staticmethod(memory.invalidate)

        @staticmethod
        def put_if_version(key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            entry = memory.put_if_version(key, value, version, ttl)
            if not newcomers:
                newcomers.append(held(Lock(FaultyStore(memory), key)))  # in another process
                message = "the reply was lost"
                raise StoreUnavailable(message)
            return entry

    broken = Lock(Meanwhile(), "key").force_release()
    assert broken is not None
    assert broken.owner == first.owner
    newcomers[0].extend()
    newcomers[0].release()


def test_force_release_is_not_told_to_a_hold_that_leaves_by_itself() -> None:
    """A hold that is released while somebody takes the key away has lost nothing if its own release was applied."""
    memory = MemoryStore()
    losses: list[Hold] = []
    applied, forced = threading.Event(), threading.Event()

    class Crossing:
        """Applies the removal after `force_release` has read the record, and answers when that has ended."""

        traits = memory.traits
        put_if_version = staticmethod(memory.put_if_version)

        @staticmethod
        def get(key: str) -> Entry | None:
            entry = memory.get(key)
            releasing.start()
            assert applied.wait(5)
            return entry

        @staticmethod
        def invalidate(key: str, version: int) -> Entry | None:
            entry = memory.invalidate(key, version)
            applied.set()
            assert forced.wait(5)
            return entry

    store = Crossing()
    hold = held(Lock(store, "key", on_lost=losses.append))
    with ThreadPoolExecutor(1) as pool:
        ended: list[Future[None]] = []
        releasing = SimpleNamespace(start=lambda: ended.append(pool.submit(hold.release)))
        Lock(store, "key").force_release()
        forced.set()
        ended[0].result(5)
    assert not hold._attempt.lease.lost
    assert not losses


def test_force_release_spares_a_later_tenure_of_the_same_acquire() -> None:
    """An acquire that is broken before it knows of its success takes the key again; only its first tenure was meant."""
    memory = MemoryStore()

    class Loses:
        """Applies the first put, lets another go on, and loses the reply."""

        traits = memory.traits

        def __init__(self) -> None:
            self.applied, self.go_on = asyncio.Event(), asyncio.Event()

        async def get(self, key: str) -> Entry | None:
            return memory.get(key)

        async def invalidate(self, key: str, version: int) -> Entry | None:
            return memory.invalidate(key, version)

        async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            entry = memory.put_if_version(key, value, version, ttl)
            if not self.applied.is_set():
                self.applied.set()
                await self.go_on.wait()
                message = "the reply was lost"
                raise StoreUnavailable(message)
            return entry

    async def scene() -> None:
        holder, breaker = Loses(), Loses()
        acquiring = asyncio.ensure_future(AsyncLock(holder, "key").acquire())
        await holder.applied.wait()
        breaking = asyncio.ensure_future(AsyncLock(breaker, "key").force_release())
        await breaker.applied.wait()
        holder.go_on.set()
        hold = await acquiring
        assert hold is not None
        breaker.go_on.set()
        assert (await breaking) is not None
        await hold.extend()
        await hold.release()

    asyncio.run(scene())


@pytest.mark.parametrize("again", [False, True])
def test_a_loss_before_the_acquire_returns_is_told(*, again: bool) -> None:
    """`force_release` may hit an acquire of its own process that has no answer yet; one that tries `again` holds."""
    store, lost = FaultyStore(MemoryStore()), threading.Event()
    store.after("put_if_version", 1, lambda: Lock(store, "k").force_release())
    if again:
        store.on("put_if_version", 1, lose_reply)
    hold = Lock(store, "k", ttl=0.3, on_lost=lambda _hold: lost.set()).acquire()
    assert hold is not None
    if again:
        hold.extend()
        hold.release()
    else:
        assert lost.wait(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the SystemExit is reported
def test_a_callback_that_exits_ends_no_renewals() -> None:
    """SystemExit in on_lost does not end the renewals of other holds on that store, nor of later ones."""
    store = MemoryStore()
    told = threading.Event()

    def leave(_: object) -> None:
        told.set()
        sys.exit(3)

    doomed = held(Lock(store, "doomed", ttl=0.3, on_lost=leave))
    other = held(Lock(store, "other", ttl=0.3))
    Lock(store, "doomed").force_release()
    assert told.wait(3)
    later = held(Lock(store, "later", ttl=0.3))
    leases = other._attempt.lease, later._attempt.lease
    deadlines = [lease.deadline for lease in leases]
    assert eventually(lambda: leases[0].deadline > deadlines[0] and leases[1].deadline > deadlines[1])
    with pytest.raises(CaslockError):
        doomed.release()
    other.release()
    later.release()


def test_a_shortened_lease_is_renewed_in_time() -> None:
    """After extend(shorter) the renewer comes earlier, with threads and with asyncio."""
    store = MemoryStore()
    hold = held(Lock(store, "key", ttl=30))
    hold.extend(0.3)
    before = hold._attempt.lease.deadline
    assert eventually(lambda: hold._attempt.lease.deadline > before)
    hold.release()

    async def main() -> None:
        async with AsyncLock(AsyncMemoryStore(store), "key", ttl=30) as shortened:
            await shortened.extend(0.3)
            before = shortened._attempt.lease.deadline
            await turns_until(lambda: shortened._attempt.lease.deadline > before)

    asyncio.run(main())


def test_a_refused_extension_leaves_the_renewals_alone() -> None:
    """A ttl that the store refuses by ValueError is not the ttl of later renewals."""
    memory = MemoryStore()

    class Choosy:
        """Keeps nothing for more than a minute."""

        traits = memory.traits
        get = staticmethod(memory.get)
        invalidate = staticmethod(memory.invalidate)

        @staticmethod
        def put_if_version(key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if ttl > 60:
                message = "too long"
                raise ValueError(message)
            return memory.put_if_version(key, value, version, ttl)

    hold = held(Lock(Choosy(), "key", ttl=0.3))
    with pytest.raises(ValueError, match="too long"):
        hold.extend(3600)
    before = hold._attempt.lease.deadline
    assert eventually(lambda: hold._attempt.lease.deadline > before)
    hold.release()


class Choosy:
    """Removes nothing under some keys, while it is so; it knows no batches."""

    def __init__(self, *keys: str) -> None:
        self.memory = MemoryStore()
        self.traits = self.memory.traits
        self.get = self.memory.get
        self.put_if_version = self.memory.put_if_version
        self.keys = keys

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove, or refuse as a store refuses bad input."""
        if key in self.keys:
            message = "bad input"
            raise ValueError(message)
        return self.memory.invalidate(key, version)


@pytest.mark.parametrize("keys", ["a", "abc"])
def test_a_release_that_is_refused_is_no_interrupt(keys: str) -> None:
    """The other keys are free, and it can be called again."""
    store = Choosy("a")
    hold = (MultiLock(store, keys=list(keys)) if len(keys) > 1 else Lock(store, keys)).acquire()
    assert hold is not None
    with pytest.raises(ValueError, match="bad input") as caught:
        hold.release()
    assert "Call release() again" in caught.value.__notes__[0]
    assert [Lock(store, key).locked() for key in keys] == [key == "a" for key in keys]
    store.keys = ()
    hold.release()
    assert not Lock(store, "a").locked()


def test_a_refusal_in_a_roll_back_leaves_no_other_key_behind() -> None:
    """The error says which key may be left, and why."""
    store = Choosy("b")
    busy = held(Lock(store, "c"))
    with pytest.raises(OutcomeUnknown, match="may not have been released: bad input"):
        MultiLock(store, ["a", "b", "c"]).acquire(timeout=0)
    assert [Lock(store, key).locked() for key in "abc"] == [False, True, True]
    busy.release()


def test_a_cancelled_renewal_is_not_the_last() -> None:
    """Cancelling every other task of the loop does not end the renewals of a block that goes on."""

    class Slow(AsyncMemoryStore):
        """Suspends in each verb."""

        async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            await asyncio.sleep(0)
            return await super().put_if_version(key, value, version, ttl)

    async def main() -> None:
        async with AsyncLock(Slow(), "key", ttl=0.4) as hold:
            cancelled = 0
            async with asyncio.timeout(3):
                while not cancelled:
                    await asyncio.sleep(0)
                    for task in asyncio.all_tasks() - {asyncio.current_task()}:
                        cancelled += task.cancel()
            before = hold._attempt.lease.deadline
            await turns_until(lambda: hold._attempt.lease.deadline > before)

    asyncio.run(main())


def test_an_inner_block_does_not_release_the_outer_hold() -> None:
    """A hold released by hand in an inner block is not taken from the outer block at the inner exit."""
    store = MemoryStore()
    lock = Lock(store, "key")

    def inner() -> None:
        with lock as hold:
            hold.release()

    with lock as outer:
        with pytest.raises(NotHeld):
            inner()
        outer.ensure_held()
        assert Lock(store, "key").acquire(timeout=0) is None
    assert not lock.locked()


def test_a_forged_record_is_a_foreign_value() -> None:
    """A record with fields of the wrong type, or that are no numbers, is held by an unknown owner."""
    good = encode(Record("me", ("a.1",), 1.0)).decode()
    assert not decode(good.encode()).foreign
    for old, new in (('"since":""', '"since":{}'), ('"write":""', '"write":7'), ('"ttl":1.0', '"ttl":1e400')):
        assert old in good
        assert decode(good.replace(old, new).encode()).foreign


def test_a_multi_lock_forgets_what_its_holds_have_released() -> None:
    """A thousand holds that were released by hand are not remembered."""
    lock = MultiLock(MemoryStore(), ["a", "b"])
    for _ in range(1_000):
        holds = lock.acquire()
        assert holds is not None
        holds.release()
    assert len(lock._state._held) <= 1


def test_a_try_that_could_not_look_again_is_no_none() -> None:
    """None means that nothing is held: if a lost put may still be applied and the store stops answering, it raises."""
    memory, key = MemoryStore(), "key"
    theirs = Lock(memory, key).acquire()
    assert theirs is not None
    store = FaultyStore(memory)
    store.on("put_if_version", 1, lose_request)
    store.on("get", 2, lose_request)
    with pytest.raises(OutcomeUnknown, match="in the background") as caught:
        Lock(store, key, retry=(0, 0)).acquire(timeout=0)
    assert isinstance(caught.value.__cause__, NotAcquired)
    theirs.release()


@pytest.mark.parametrize("kind", [Lock, MultiLock])
def test_an_interrupt_at_the_end_of_a_block_leaves_the_outer_one_alone(kind: type[Lock | MultiLock]) -> None:
    """An interrupt that strikes when a block has been left releases nothing more: the block around it goes on."""
    store = MemoryStore()
    lock = Lock(store, "key") if kind is Lock else MultiLock(store, ["key", "other"])
    blocks = lock._blocks
    leave = blocks.leave

    def leave_and_interrupt(block: object) -> None:
        blocks.leave = leave  # type: ignore[method-assign]
        leave(block)
        raise KeyboardInterrupt

    with lock as outer:
        with pytest.raises(KeyboardInterrupt), lock:
            blocks.leave = leave_and_interrupt  # type: ignore[assignment,method-assign]
        outer.ensure_held()
    assert store.get("key") is None


def test_threads_of_one_lock_never_share_a_hold_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that takes over while another makes its attempt has a hold id of its own."""
    state = Lock(MemoryStore(), "key")._state.begun()
    others: list[str] = []
    terms = state._terms

    def while_another_acquires(_: LockState) -> Terms:
        monkeypatch.undo()
        others.append(state._attempt().hold_id)
        return terms

    monkeypatch.setattr(LockState, "_terms", property(while_another_acquires))
    assert state._attempt().hold_id not in others
    assert others


@pytest.mark.parametrize("auto_renew", [True, False])
def test_a_loss_that_extend_has_found_is_reported_at_once(*, auto_renew: bool) -> None:
    """`on_lost` does not wait until the renewer is due."""
    store, told = MemoryStore(), threading.Event()
    hold = held(Lock(store, "key", auto_renew=auto_renew, on_lost=lambda _hold: told.set()))
    store.invalidate("key", hold.fence)
    with pytest.raises(LockLost):
        hold.extend()
    assert told.wait(5)


def test_a_hold_whose_loop_was_closed_as_it_was_renewed_can_be_released() -> None:
    """A renewal that its loop will never finish keeps no release waiting."""
    memory = MemoryStore()

    class Hanging(AsyncMemoryStore):
        hangs = False

        async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if self.hangs:
                begun.set()
                await asyncio.Event().wait()
            return await super().put_if_version(key, value, version, ttl)

    begun = asyncio.Event()
    store = Hanging(memory)

    async def hold_on() -> AsyncHold:
        hold = await AsyncLock(store, "key", ttl=2).acquire()
        assert hold is not None
        store.hangs = True
        await begun.wait()
        return hold

    loop = asyncio.new_event_loop()
    hold = loop.run_until_complete(hold_on())
    loop.close()
    store.hangs = False
    asyncio.run(asyncio.wait_for(hold.release(), 10))
    assert memory.get("key") is None


@pytest.mark.parametrize("timeout", [0, 0.5])
def test_a_store_that_is_too_slow_for_the_ttl_is_said_to_be(timeout: float) -> None:
    """Where each lease is over before its answer comes, nobody is in the way: that is no None, but an error."""
    memory = MemoryStore()

    class Slow:
        """Answers after 40 ms."""

        traits = memory.traits
        get = staticmethod(memory.get)
        invalidate = staticmethod(memory.invalidate)

        @staticmethod
        def put_if_version(key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            entry = memory.put_if_version(key, value, version, ttl)
            time.sleep(0.04)
            return entry

    with pytest.raises(StoreUnavailable, match="too slowly for a ttl"):
        Lock(Slow(), "key", ttl=0.03).acquire(timeout=timeout)
    assert memory.get("key") is None
