"""A Lock behaves as `threading.RLock` does, and reports its lease correctly."""

# ruff: noqa: FBT003 - acquire takes threading's own positional arguments
# ruff: noqa: PT012 - what is raised at the end of a `with` block needs a block

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import pytest

from caslock import Hold, Lock, LockLost, NotAcquired, NotHeld, Record, StoreError, StoreUnavailable
from caslock.local import thread_renewer as renewer
from caslock.local.workers import LINGER
from caslock.protocol.attempt import Attempt
from caslock.protocol.record import decode, encode
from caslock.stores.memory import MemoryStore
from tests.support.locations import KINDS, PROMPT, SHARED, Address, Place, Watched, fresh, observed, opened, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock import Entry, Store, Traits

T = TypeVar("T")


@pytest.fixture(params=PROMPT)
def prompt_location(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return each location in turn where a lease ends when its ttl does."""
    with opened(request.param, request) as location:
        yield location


@pytest.fixture(params=SHARED)
def shared_location(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return each location in turn that other processes can reach."""
    with opened(request.param, request) as location:
        yield location


def elsewhere(act: Callable[[], T]) -> T:
    """Run `act` in another thread, and return what it returns or raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(timeout=20)


def held(lock: Lock, timeout: float | None = 0) -> Hold:
    """Acquire a lock that must be free."""
    hold = lock.acquire(timeout=timeout)
    assert hold is not None
    return hold


def wait(seconds: float) -> None:
    """Let a lease run out, which takes real time."""
    threading.Event().wait(seconds)


def test_a_free_lock_is_acquired_by_every_form_of_call(memory: MemoryStore) -> None:
    """acquire takes threading.Lock's arguments, by position or by name."""
    lock = Lock(memory, fresh())
    calls: list[Callable[[], Hold | None]] = [
        lock.acquire,
        lambda: lock.acquire(True),
        lambda: lock.acquire(False),
        lambda: lock.acquire(True, 5),
        lambda: lock.acquire(True, -1),
        lambda: lock.acquire(False, -1),
        lambda: lock.acquire(blocking=False),
        lambda: lock.acquire(timeout=0),
        lambda: lock.acquire(timeout=None),
        lambda: lock.acquire(blocking=True, timeout=0.5),
    ]
    for call in calls:
        hold = call()
        assert hold is not None
        hold.release()


def test_a_busy_lock_is_none(location: Place) -> None:
    """When somebody else holds the key, acquire gives None: at once without blocking, else after the timeout."""
    store, key = location.store(), fresh()
    other = Lock(location.store(), key)

    with Lock(store, key):
        began = time.monotonic()
        assert other.acquire(False) is None
        assert other.acquire(timeout=0) is None
        assert time.monotonic() - began < 1
        began = time.monotonic()
        assert other.acquire(True, 0.1) is None
        assert time.monotonic() - began >= 0.1

    assert other.acquire(False) is not None


def test_one_try_is_one_request(memory: MemoryStore) -> None:
    """blocking=False asks the store once, whoever holds the key."""
    store, key = Watched(memory), fresh()
    with Lock(memory, key):
        assert Lock(store, key).acquire(False) is None
    assert store.requests == [("put", key)]


def test_minus_one_waits_for_ever(memory: MemoryStore) -> None:
    """timeout=-1 outlasts the timeout that the lock was made with."""
    key, waiting = fresh(), threading.Event()
    first = held(Lock(memory, key))
    watched = Watched(memory)
    second = Lock(watched, key, timeout=0.01)

    def contend() -> bool:
        waiting.set()
        return second.acquire(True, -1) is not None

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(contend)
        assert waiting.wait(10)
        assert until(lambda: len(watched.requests) > 5)
        assert not future.done()
        first.release()
        assert future.result(timeout=10)


def test_the_timeout_of_the_lock_serves_with_and_acquire(memory: MemoryStore) -> None:
    """Without one of its own, acquire waits for the timeout of the lock; blocking=False is one try anyway."""
    key = fresh()
    patient = Lock(memory, key, timeout=0.1)
    with Lock(memory, key):
        began = time.monotonic()
        assert patient.acquire() is None
        assert time.monotonic() - began >= 0.1
        began = time.monotonic()
        assert Lock(memory, key, timeout=30).acquire(False) is None
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("blocking", "timeout"), [(False, 1), (False, 0), (True, -2), (True, -0.5), (True, float("nan"))]
)
def test_arguments_that_contradict_are_value_errors(memory: MemoryStore, blocking: bool, timeout: float) -> None:  # noqa: FBT001 - threading's own argument
    """A timeout with blocking=False, or a negative one other than -1, is a ValueError."""
    lock = Lock(memory, fresh())
    with pytest.raises(ValueError, match="timeout"):
        lock.acquire(blocking, timeout)
    assert not lock.locked()


def test_not_acquired_shows_who_holds_it(location: Place) -> None:
    """NotAcquired names the key, the location, the owner, since when and with what lease; it is a TimeoutError."""
    key, store = fresh(), location.store()
    first = Lock(store, key, ttl=7.5, note="nightly run")

    with first:
        with pytest.raises(NotAcquired) as caught, Lock(store, key, timeout=0.05):
            pytest.fail("two hold one lock")
        record = first.holder()

    assert record is not None
    told = str(caught.value)
    for fact in (
        repr(key),
        store.traits.location,
        first.owner,
        record.since_iso,
        "7.5 s",
        "nightly run",
        str(record.pid),
    ):
        assert fact in told
    assert isinstance(caught.value, TimeoutError)


def test_not_acquired_reports_another_thread_of_the_same_object(memory: MemoryStore) -> None:
    """The error of a thread that waited for another one of the same Lock object names key, owner and since when."""
    lock = Lock(memory, fresh(), timeout=0.05)
    with lock:
        record = lock.holder()
        assert record is not None
        with pytest.raises(NotAcquired) as caught:
            elsewhere(lock.__enter__)
    for fact in (repr(lock.key), lock.owner, "another thread"):
        assert fact in str(caught.value)


def test_re_entry_asks_nobody(memory: MemoryStore) -> None:
    """The same thread acquires again, and releases all but the last hold, without any request."""
    store = Watched(memory)
    lock = Lock(store, fresh())
    with lock as outer:
        after_first = len(store.requests)
        with lock as middle, lock as inner:
            assert outer.fence == middle.fence == inner.fence
        assert len(store.requests) == after_first == 1
    assert [verb for verb, _ in store.requests] == ["put", "invalidate"]


def test_n_releases_for_n_acquires(location: Place) -> None:
    """The key is free after as many releases as acquires, and not before."""
    store, key = location.store(), fresh()
    lock, other = Lock(store, key), Lock(store, key)
    for _ in range(3):
        held(lock)
    for _ in range(3):
        assert other.acquire(False) is None
        lock.release()
    assert not lock.locked()
    with pytest.raises(NotHeld, match=key):
        lock.release()
    held(other).release()


def test_another_thread_can_not_release_a_lock_but_a_hold(location: Place) -> None:
    """Lock.release belongs to the thread that holds; Hold.release may be called from any thread."""
    store, key = location.store(), fresh()
    lock = Lock(store, key)
    hold = held(lock)

    with pytest.raises(NotHeld, match=key):
        elsewhere(lock.release)
    hold.ensure_held()
    elsewhere(hold.release)

    assert not lock.locked()
    with pytest.raises(NotHeld):
        lock.release()
    held(lock).release()


def test_holds_released_by_another_thread_in_any_order(memory: MemoryStore) -> None:
    """A thread that re-entered may hand its holds to another one, which releases them in any order."""
    lock = Lock(memory, fresh())
    outer, inner = held(lock), held(lock)
    elsewhere(outer.release)
    assert lock.locked()
    inner.ensure_held()
    elsewhere(inner.release)
    assert not lock.locked()
    assert elsewhere(lambda: held(lock)).remaining() > 0


def test_a_second_release_of_one_hold_is_not_held(location: Place) -> None:
    """Releasing a hold twice raises NotHeld and frees nobody else's hold; so do its other verbs."""
    store, key = location.store(), fresh()
    first = held(Lock(store, key))
    first.release()
    second = held(Lock(store, key))

    for call in (first.release, first.extend, first.ensure_held):
        with pytest.raises(NotHeld, match=key):
            call()

    second.ensure_held()
    second.extend()
    second.release()


def test_a_hold_released_inside_its_block_is_reported_at_exit(memory: MemoryStore) -> None:
    """Leaving a block whose hold was released by hand raises NotHeld, as RLock does."""
    lock = Lock(memory, fresh())
    with pytest.raises(NotHeld), lock as hold:
        hold.release()
    assert not lock.locked()


def test_another_thread_on_the_same_object_waits_and_gets_it(location: Place) -> None:
    """Threads that share a Lock object exclude each other, and the next one gets it at the release."""
    lock = Lock(location.store(), fresh())
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with lock:
            inside.set()
            assert leave.wait(20)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first)
        assert inside.wait(20)
        assert lock.acquire(timeout=0) is None
        two = pool.submit(lambda: held(lock, timeout=20))
        assert not two.done()
        leave.set()
        two.result(timeout=20).release()
        one.result(timeout=20)
    assert not lock.locked()


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_threads_never_meet_inside(location: Place, shared: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Threads that add to a number in two steps under the lock lose no addition."""
    store, key, number = location.store(), fresh(), [0]
    one = Lock(store, key)
    poll = 12

    def add() -> None:
        lock = one if shared else Lock(store, key)
        for _ in range(poll):
            with lock:
                seen = number[0]
                time.sleep(0)  # invites another thread
                number[0] = seen + 1

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(add) for _ in range(3)]:
            future.result(timeout=50)
    assert number == [3 * poll]


def test_a_recycled_thread_number_inherits_nothing(memory: MemoryStore) -> None:
    """A thread that gets the number and the name of one that died holding can neither re-enter nor release."""
    lock = Lock(memory, fresh())
    idents: set[int] = set()
    answers: list[object] = []

    def die_holding() -> None:
        idents.add(threading.get_ident())
        held(lock)

    def attempt() -> None:
        if threading.get_ident() in idents:
            answers.append(lock.acquire(timeout=0))
            with contextlib.suppress(NotHeld):
                lock.release()
                answers.append("released")

    for number in range(5000):
        if number % 100 == 0:  # another thread of this process may have got the number meanwhile: let one more die
            lock = Lock(memory, fresh())
            idents.clear()
            thread = threading.Thread(target=die_holding, name="worker-1")
            thread.start()
            thread.join()
        thread = threading.Thread(target=attempt, name="worker-1")
        thread.start()
        thread.join()
        if answers:
            break

    assert answers == [None], "no thread got the number again" if not answers else "it inherited the lock"
    assert lock.locked()


def test_a_pool_thread_that_leaked_a_lock_does_not_own_it(location: Place) -> None:
    """What a job left locked stays locked for the next job of that pool thread, which has its own Lock object."""
    store, key = location.store(), fresh()
    leaked = Lock(store, key)
    with ThreadPoolExecutor(1) as pool:
        hold = pool.submit(lambda: held(leaked)).result()
        assert pool.submit(lambda: Lock(store, key).acquire(timeout=0)).result() is None
        with pytest.raises(NotHeld):
            pool.submit(lambda: Lock(store, key).release()).result()
    hold.release()


@pytest.mark.parametrize("with_callback", [False, True], ids=["plain", "with on_lost"])
def test_a_forgotten_hold_ends_within_a_lease(prompt_location: Place, with_callback: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A Lock and Hold that nothing refers to are not renewed for ever: the key is free within a lease."""
    store, key, ttl = prompt_location.store(), fresh(), 0.8

    held(Lock(store, key, ttl=ttl, on_lost=(lambda _: None) if with_callback else None))
    assert observed(store, key) is not None
    gc.collect()  # on a busy machine it may take longer than the lease

    assert until(lambda: observed(store, key) is None, ttl + 1)


def test_a_hold_forgotten_after_a_renewal_ends_within_a_lease(memory: MemoryStore) -> None:
    """What has renewed a lease does not keep its hold alive until the next renewal."""
    key, ttl = fresh(), 0.4
    hold = held(Lock(memory, key, ttl=ttl))
    first = memory.get(key)
    assert until(lambda: memory.get(key) != first)

    del hold
    gc.collect()

    assert until(lambda: observed(memory, key) is None, ttl + 1)


def test_an_explicit_owner_re_enters_from_another_object_and_thread(location: Place) -> None:
    """Every Lock with the same explicit owner re-enters, with the same fence; the last release frees the key."""
    store, key = location.store(), fresh()
    first = held(Lock(store, key, owner="orders:9f1c"))
    second = held(Lock(location.store(), key, owner="orders:9f1c"))
    third = elsewhere(lambda: held(Lock(store, key, owner="orders:9f1c")))
    assert first.fence == second.fence == third.fence
    assert Lock(store, key, owner="orders:0000").acquire(timeout=0) is None

    first.release()
    third.release()
    second.ensure_held()
    assert Lock(store, key).acquire(timeout=0) is None
    second.release()
    after = held(Lock(store, key))
    assert after.fence > first.fence


def fence_of(address: Address, key: str, owner: str | None) -> int | None:
    """Acquire in this process, and return the fence."""
    hold = Lock(address.open(), key, owner=owner).acquire(timeout=0)
    if hold is None:
        return None
    fence = hold.fence
    hold.release()
    return fence


@pytest.mark.long
def test_an_explicit_owner_re_enters_from_another_process(shared_location: Place) -> None:
    """Another process with the same explicit owner re-enters, with the same fence; another owner does not."""
    key = fresh()
    first = held(Lock(shared_location.store(), key, owner="orders:9f1c"))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(fence_of, shared_location.address, key, "orders:9f1c").result(timeout=40) == first.fence
        assert pool.submit(fence_of, shared_location.address, key, None).result(timeout=40) is None
        first.extend()
        first.release()
        after = pool.submit(fence_of, shared_location.address, key, None).result(timeout=40)
    assert after is not None
    assert after > first.fence


def test_a_shorter_re_entry_does_not_shorten_the_lease(prompt_location: Place) -> None:
    """A Lock of the same owner with a short ttl leaves the first hold's lease at the store as long as it was."""
    store, key = prompt_location.store(), fresh()
    long = held(Lock(store, key, owner="one", ttl=20, auto_renew=False))
    short = held(Lock(store, key, owner="one", ttl=0.1, auto_renew=False))

    assert until(lambda: short.lost)
    wait(0.2)
    assert Lock(store, key).acquire(timeout=0) is None
    long.ensure_held()
    with pytest.raises(LockLost):
        short.release()
    long.release()
    assert observed(store, key) is None


def test_holder_shows_who_and_locked_whether(location: Place) -> None:
    """holder returns the record of the holder, to any client; None when the key is free."""
    store, key = location.store(), fresh()
    lock, stranger = Lock(store, key, note="a note", ttl=12), Lock(store, key)
    assert stranger.holder() is None
    assert not stranger.locked()

    with lock:
        record = stranger.holder()
        assert isinstance(record, Record)
        assert (record.owner, record.note, record.ttl) == (lock.owner, "a note", 12)
        assert stranger.locked()

    assert stranger.holder() is None


def test_holder_shows_the_fence_and_since_when(location: Place) -> None:
    """holder and force_release give the fence of a tenure, renewed or not, and its beginning as a datetime."""
    store, key = location.store(), fresh()
    lock = Lock(store, key)
    began = datetime.now(UTC)
    hold = held(lock)
    seen = [lock.holder()]
    hold.extend()
    seen += [lock.holder(), lock.force_release()]
    for record in seen:
        assert record is not None
        assert record.fence == hold.fence
        assert record.since is not None
        assert abs(record.since - began) < timedelta(seconds=5)


def test_holder_has_no_fence_where_the_store_has_none(memory: MemoryStore) -> None:
    """Where versions do not grow, holder gives no number that somebody might take for a fence."""
    memory.traits = memory.traits._replace(fences=False)
    lock = Lock(memory, fresh())
    hold = held(lock)
    hold.extend()
    record = lock.holder()
    assert record is not None
    assert record.fence is None


def test_a_record_without_a_time_says_so() -> None:
    """A record without the time when its tenure began, or with a text that is no time, has None there."""
    assert [Record("o", ("h",), 1.0, since_iso=text).since for text in ("", "yesterday")] == [None, None]


def test_force_release_takes_the_key_away(location: Place) -> None:
    """force_release gives the holder; the next fence is larger, and the old holder learns of it at release."""
    store, key = location.store(), fresh()
    lock, stranger = Lock(store, key), Lock(store, key)
    assert stranger.force_release() is None
    old = held(lock)

    broken = stranger.force_release()

    assert broken is not None
    assert broken.owner == lock.owner
    new = held(stranger)
    assert new.fence > old.fence
    with pytest.raises(LockLost, match=key):
        old.release()
    assert old.lost
    new.ensure_held()
    new.extend()
    new.release()
    held(lock).release()


def test_a_hold_released_by_force_can_not_be_extended(location: Place) -> None:
    """extend never makes a lease anew: after force_release it raises LockLost, and the key stays free."""
    store, key = location.store(), fresh()
    hold = held(Lock(store, key))
    Lock(store, key).force_release()
    with pytest.raises(LockLost, match=key):
        hold.extend()
    assert hold.lost
    assert hold.remaining() == 0
    assert observed(store, key) is None


def test_the_error_of_the_block_is_never_masked(memory: MemoryStore) -> None:
    """When the block fails and the lease was lost too, the block's own exception leaves, with a note of the loss."""
    lock = Lock(memory, fresh())
    with pytest.raises(KeyError, match="of the body") as caught, lock:
        Lock(memory, lock.key).force_release()
        message = "of the body"
        raise KeyError(message)
    assert any("was lost" in note and lock.key in note for note in caught.value.__notes__)


def test_the_error_of_the_block_is_not_masked_by_a_store_that_is_down(memory: MemoryStore) -> None:
    """When the block fails and the release gets no answer, the block's own exception leaves, with a note of that."""
    store = Watched(memory)
    with pytest.raises(KeyError) as caught, Lock(store, fresh(), ttl=5):
        store.lose = lambda _verb, _key: True
        raise KeyError
    assert any("network is down" in note for note in caught.value.__notes__)


def test_loss_is_reported_at_exit_when_the_block_has_finished(location: Place) -> None:
    """A block that finished while its lease was taken away ends in LockLost, which names the key."""
    store = location.store()
    lock = Lock(store, fresh())
    with pytest.raises(LockLost, match=lock.key), lock:
        Lock(store, lock.key).force_release()
    held(lock).release()


def test_a_lease_that_ran_out_is_reported_at_exit(prompt_location: Place) -> None:
    """A block that outlasts a lease that nobody renews ends in LockLost, and touches no later holder."""
    store, key = prompt_location.store(), fresh()
    with pytest.raises(LockLost, match=key), Lock(store, key, ttl=0.1, auto_renew=False) as hold:
        assert until(lambda: observed(store, key) is None)
        assert hold.lost
        with pytest.raises(LockLost, match=key):
            hold.ensure_held()
        other = held(Lock(store, key))
    other.ensure_held()
    other.extend()
    other.release()


def test_re_entry_of_a_lost_lock_is_refused(memory: MemoryStore) -> None:
    """A thread that lost its lease can't re-enter; every level learns of it, and then it may begin anew."""
    lock = Lock(memory, fresh(), ttl=0.1, auto_renew=False)
    outer, inner = held(lock), held(lock)
    assert until(lambda: outer.lost)

    with pytest.raises(LockLost, match=lock.key):
        lock.acquire(timeout=0)

    for hold in (inner, outer):
        with pytest.raises(LockLost, match=lock.key):
            hold.release()
    again = held(lock)
    assert again.fence > outer.fence
    again.release()


def test_on_lost_is_called_once(memory: MemoryStore) -> None:
    """on_lost is called once, with the hold, soon after the loss, and not by the thread that holds."""
    calls: list[tuple[object, threading.Thread]] = []
    lock = Lock(memory, fresh(), ttl=0.3, on_lost=lambda hold: calls.append((hold, threading.current_thread())))
    hold = held(lock)
    Lock(memory, lock.key).force_release()

    assert until(lambda: calls)
    wait(0.4)
    assert calls == [(hold, calls[0][1])]
    assert calls[0][1] is not threading.current_thread()
    with pytest.raises(LockLost):
        hold.release()
    assert len(calls) == 1


def test_on_lost_is_not_called_for_a_lock_that_was_released(memory: MemoryStore) -> None:
    """After a release in time, on_lost stays silent."""
    calls: list[object] = []
    lock = Lock(memory, fresh(), ttl=0.2, on_lost=calls.append)
    held(lock).release()
    wait(0.3)
    assert not calls


def test_on_lost_is_called_without_renewal_too(memory: MemoryStore) -> None:
    """With auto_renew=False, on_lost is called when the lease ends."""
    calls: list[object] = []
    hold = held(Lock(memory, fresh(), ttl=0.2, auto_renew=False, on_lost=calls.append))
    assert until(lambda: calls)
    assert calls == [hold]
    assert hold.lost


@pytest.mark.parametrize("notice", ["extend", "ensure_held", "acquire"])
def test_on_lost_is_called_whoever_notices_first(memory: MemoryStore, notice: str) -> None:
    """on_lost is called even when an extension, a question or a re-entry is the first to find the lease gone."""
    calls: list[object] = []
    lock = Lock(memory, fresh(), ttl=0.2, auto_renew=notice == "extend", on_lost=calls.append)
    hold = held(lock)
    with_the_renewer_asleep: dict[str, Callable[[], object]] = {
        "extend": hold.extend,
        "ensure_held": hold.ensure_held,
        "acquire": lambda: lock.acquire(timeout=0),
    }
    if notice == "extend":
        Lock(memory, lock.key).force_release()
    else:
        hold._attempt.lease.deadline = 0.0  # it has just passed; the renewer comes to see it 0.2 s later
    with pytest.raises(LockLost):
        with_the_renewer_asleep[notice]()

    assert until(lambda: calls, 0.6)
    assert calls == [hold]


def test_a_failing_on_lost_ends_no_other_renewals(memory: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in on_lost is logged with key and traceback, and the other holds are renewed further."""

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    def fail(_: object) -> None:
        message = "of the callback"
        raise RuntimeError(message)

    doomed = held(Lock(memory, fresh(), ttl=0.6, on_lost=fail))
    other = held(Lock(memory, fresh(), ttl=0.6))
    Lock(memory, doomed.key).force_release()

    assert until(errors)
    wait(0.9)
    assert errors() == [f"the on_lost callback of lock {doomed.key!r} raised an exception"]
    assert "RuntimeError: of the callback" in caplog.text
    other.ensure_held()
    other.release()


@pytest.mark.long
def test_a_short_lease_is_kept_alive(request: pytest.FixtureRequest) -> None:
    """On every store, a lease is renewed in the background: after more than two it is held, with the same fence."""
    with contextlib.ExitStack() as stack:
        locations = [stack.enter_context(opened(kind, request)) for kind in KINDS]
        stores = [location.store() for location in locations]
        for store in stores:
            store.get("warm")  # a new memcached asks for seconds
        ttl = 2.0  # long enough for a busy machine to renew it in time
        holds = [held(Lock(store, fresh(), ttl=ttl)) for store in stores]
        fences = [hold.fence for hold in holds]
        wait(2.2 * ttl)
        for hold in holds:
            hold.ensure_held()
        assert [hold.fence for hold in holds] == fences
        assert all(observed(store, hold.key) for store, hold in zip(stores, holds, strict=True))
        for hold in holds:
            hold.release()


def test_max_hold_ends_the_renewals(memory: MemoryStore) -> None:
    """A hold is renewed until max_hold and no longer: then it is lost, and the key free."""
    began = time.monotonic()
    lock = Lock(memory, fresh(), ttl=0.3, max_hold=0.9)
    hold = held(lock)

    assert until(lambda: observed(memory, lock.key) is None)
    assert 0.6 < time.monotonic() - began < 1.5
    assert hold.lost
    with pytest.raises(LockLost, match=r"max_hold of 0\.9 s"):
        hold.extend()
    with pytest.raises(LockLost, match=r"max_hold of 0\.9 s"):
        hold.release()


@pytest.mark.parametrize(("ttl", "max_hold"), [(0.2, 60), (60, 0.2)])
@pytest.mark.parametrize("act", [Hold.ensure_held, Hold.release])
def test_a_loss_names_max_hold_only_where_that_ended_it(
    memory: MemoryStore, act: Callable[[Hold], None], ttl: float, max_hold: float
) -> None:
    """A lease that nobody renewed ended before it was renewed, or released; one that max_hold ended says so."""
    named = max_hold < ttl
    hold = held(Lock(memory, fresh(), ttl=ttl, auto_renew=False, max_hold=max_hold))
    assert until(lambda: hold.lost)
    with pytest.raises(LockLost) as caught:
        act(hold)
    assert ("max_hold of 0.2 s" in str(caught.value)) == named
    assert ("its lease ended" in str(caught.value)) != named


def test_extend_does_not_outlast_max_hold(memory: MemoryStore) -> None:
    """An extension, however long, ends at max_hold."""
    hold = held(Lock(memory, fresh(), ttl=0.5, max_hold=1.5))
    hold.extend(60)
    assert 0.5 < hold.remaining() <= 1.5


def test_extend_replaces_the_lease(location: Place) -> None:
    """extend counts from now: a longer one lengthens the lease, a shorter one shortens it."""
    hold = held(Lock(location.store(), fresh(), ttl=10))
    hold.extend(60)
    assert 50 < hold.remaining() < 60
    hold.extend(20)
    assert 10 < hold.remaining() < 20
    hold.extend()
    assert 10 < hold.remaining() < 20
    hold.release()


@pytest.mark.long
def test_renewals_that_fail_for_most_of_a_lease_lose_nothing(memory: MemoryStore) -> None:
    """A store that is down until 0.85 of a lease is over, and then is back, loses no lock."""
    store, ttl = Watched(memory), 1.6
    lock = Lock(store, fresh(), ttl=ttl)
    hold = held(lock)
    back = time.monotonic() + 0.85 * ttl
    store.lose = lambda _verb, _key: time.monotonic() < back

    wait(1.5 * ttl)

    assert len(store.requests) > 5
    hold.ensure_held()
    hold.release()
    assert observed(memory, lock.key) is None


def test_renewals_that_fail_for_a_whole_lease_are_a_loss(memory: MemoryStore) -> None:
    """A store that is down for longer than the lease is a loss at the deadline, not later, although nobody answers."""
    store, calls = Watched(memory), list[float]()
    hold = held(Lock(store, fresh(), ttl=0.6, on_lost=lambda _: calls.append(time.monotonic())))
    began = time.monotonic()
    store.lose = lambda _verb, _key: True

    assert until(lambda: hold.lost)
    assert time.monotonic() - began <= 0.9
    assert until(lambda: calls)
    with pytest.raises((LockLost, StoreUnavailable)):
        hold.release()


def renewers(before: set[threading.Thread]) -> list[threading.Thread]:
    """Name the renewer threads that were started since."""
    return [thread for thread in threading.enumerate() if "renewer" in thread.name and thread not in before]


@pytest.mark.long
def test_the_renewer_comes_with_the_first_hold_and_goes_after_the_last() -> None:
    """One thread watches all leases of the process; it is gone a third of a lease and a second after the last one."""
    for left in [each for each in gc.get_objects() if type(each) is Attempt]:
        left.ending = True  # holds that other tests have left behind: their renewals would keep our thread awake
    renewer._renewer = None  # other tests have started one; it is not put back, for its thread may end meanwhile
    before, store, other = set(threading.enumerate()), MemoryStore(), MemoryStore()
    locks = [Lock(store, fresh(), ttl=0.9) for _ in range(3)]
    assert renewers(before) == []

    holds = [held(lock) for lock in locks]
    mine = renewers(before)
    assert len(mine) == 1
    assert mine[0].daemon
    holds.append(held(Lock(other, fresh(), ttl=0.9)))
    assert renewers(before) == mine
    wait(1.2)
    assert mine[0] in renewers(before)

    for hold in holds:
        hold.ensure_held()
        hold.release()
    mine[0].join(0.3 + 2 * LINGER + 0.5)
    assert not mine[0].is_alive()
    assert renewers(before) == []
    held(locks[0]).release()


class Hanging:
    """A store whose puts hang while the gate is shut."""

    def __init__(self) -> None:
        """Begin open."""
        self._store = MemoryStore()
        self.gate = threading.Event()
        self.gate.set()
        self.stuck = threading.Event()

    @property
    def traits(self) -> Traits:
        """Those of the memory."""
        return self._store.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return self._store.get(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        if not self.gate.is_set():
            self.stuck.set()
            assert self.gate.wait(30)
        return self._store.put_if_version(key, value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return self._store.invalidate(key, version)


def test_a_store_that_hangs_starves_no_other(memory: MemoryStore) -> None:
    """While renewals on one store hang, those on another go on."""
    hanging = Hanging()
    stuck = held(Lock(hanging, fresh(), ttl=0.6))
    other = held(Lock(memory, fresh(), ttl=0.6))
    hanging.gate.clear()
    try:
        assert hanging.stuck.wait(5)
        wait(1.2)
        other.ensure_held()
        assert stuck.lost
    finally:
        hanging.gate.set()
    other.release()


def test_fences_grow_over_tenures_and_stay_within_one(location: Place) -> None:
    """Each tenure has one fence, through renewals and re-entries, and it is larger than that of every earlier one."""
    store, key = location.store(), fresh()
    fences: list[int] = []
    for _ in range(5):
        lock = Lock(store, key)
        with lock as hold, lock as again:
            hold.extend()
            assert hold.fence == again.fence
            fences.append(hold.fence)
    Lock(store, key).acquire(timeout=0)
    Lock(store, key).force_release()
    fences.append(held(Lock(store, key)).fence)
    assert fences == sorted(set(fences))


def test_a_store_that_can_not_promise_a_fence_gives_none(memory: MemoryStore) -> None:
    """Where versions may not grow for ever, asking for the fence is a StoreError, not a wrong number."""
    store = Watched(memory)
    store.traits = memory.traits._replace(fences=False)
    with Lock(store, fresh()) as hold, pytest.raises(StoreError, match="fence"):
        _ = hold.fence


def test_a_release_without_an_answer_can_be_called_again(memory: MemoryStore) -> None:
    """After StoreUnavailable the hold is kept: release it again, by the hold or by the lock."""
    for again in ("hold", "lock"):
        store = Watched(memory)
        lock = Lock(store, fresh())
        hold = held(lock)
        store.lose = lambda _verb, _key: True
        with pytest.raises(StoreUnavailable):
            lock.release()
        assert observed(memory, lock.key) is not None
        store.lose = lambda _verb, _key: False
        (hold if again == "hold" else lock).release()
        assert observed(memory, lock.key) is None
        with pytest.raises(NotHeld):
            hold.release()


def test_a_release_without_an_answer_does_not_block_its_own_object(location: Place) -> None:
    """After a release that got no answer, a new acquire by the same object gets the key at once, and a new fence."""
    plain = location.store()
    store = Watched(plain)
    lock = Lock(store, fresh())
    hold = held(lock)
    store.lose = lambda _verb, _key: True
    with pytest.raises(StoreUnavailable):
        hold.release()
    store.lose = lambda _verb, _key: False

    again = held(lock)

    assert again.fence > hold.fence
    again.extend()
    lock.release()
    assert observed(plain, lock.key) is None


def test_a_release_without_an_answer_is_not_renewed(memory: MemoryStore) -> None:
    """What a failed release leaves behind ends by itself within a lease."""
    store = Watched(memory)
    lock = Lock(store, fresh(), ttl=0.5)
    hold = held(lock)
    store.lose = lambda verb, _key: verb == "invalidate"
    with pytest.raises(StoreUnavailable):
        hold.release()
    assert until(lambda: observed(memory, lock.key) is None, 1.5)


def test_another_thread_gets_a_lock_whose_release_went_without_an_answer(memory: MemoryStore) -> None:
    """After a failed release, another thread of the same object is not blocked by it."""
    store = Watched(memory)
    lock = Lock(store, fresh())
    hold = held(lock)
    store.lose = lambda _verb, _key: True
    with pytest.raises(StoreUnavailable):
        hold.release()
    store.lose = lambda _verb, _key: False
    elsewhere(lambda: held(lock)).release()
    assert observed(memory, lock.key) is None


def test_a_lock_says_what_it_is(memory: MemoryStore) -> None:
    """repr shows key and location, and of a hold whether it is held."""
    lock = Lock(memory, "room:42")
    assert repr(lock) == f"<Lock 'room:42' at {memory.traits.location}>"
    hold = held(lock)
    assert "remaining" in repr(hold)
    hold.release()
    assert repr(hold) == "<Hold of 'room:42': released>"


def _is_store(store: Store) -> Store:
    return store


_is_store(Hanging())
_is_store(Watched(MemoryStore()))


@pytest.mark.parametrize("owner", [None, 'own "ü" %s {} \\'])
def test_the_first_record_is_written_as_any_other(memory: MemoryStore, owner: str | None) -> None:
    """The uncontended path encodes records by itself, and to the byte as every other write would."""
    key = fresh()
    hold = held(Lock(memory, key, owner=owner, ttl=1.5, note='100 % "ü" {}'))
    entry = memory.get(key)
    assert entry is not None
    assert entry.value == encode(decode(entry.value)) == encode(hold._attempt.lease.record)  # type: ignore[arg-type] # None fails the test too
    hold.release()


@dataclass(frozen=True)
class Named:
    """A store that counts as equal to another of the same name, whatever is behind it."""

    name: str
    inner: MemoryStore = field(compare=False)

    @property
    def traits(self) -> Traits:
        """As the store behind it has them."""
        return self.inner.traits

    def get(self, key: str) -> Entry | None:
        """Ask the store behind it."""
        return self.inner.get(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Ask the store behind it."""
        return self.inner.put_if_version(key, value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Ask the store behind it."""
        return self.inner.invalidate(key, version)


class Unhashable(Named):
    """One that can't be hashed, as a dataclass that is not frozen."""

    __hash__ = None  # type: ignore[assignment] # what such a dataclass has


@pytest.mark.parametrize("kind", [Named, Unhashable])
def test_equal_stores_are_two_stores(kind: type[Named]) -> None:
    """Locks ask the store that they were given, and no other that its class takes for equal."""
    mine, theirs, key = kind("locks", MemoryStore()), kind("locks", MemoryStore()), fresh()
    assert mine == theirs
    ours = held(Lock(mine, key))
    hold = held(Lock(theirs, key))  # free there
    assert Lock(theirs, key).locked()
    hold.release()
    assert not Lock(theirs, key).locked()
    assert Lock(mine, key).locked()
    ours.release()
