"""`FaultyStore` and `AsyncFaultyStore` do what was planned, when it was planned, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT, BatchingStore, Entry, Put, QueueingStore, Removal, WatchingStore
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing import (
    AsyncFaultyStore,
    Fault,
    FaultyStore,
    duplicate,
    echo,
    late,
    lose_reply,
    lose_request,
    on_loop,
    raising,
    read_again,
    unsent,
)
from caslock.testing.drive import driven
from caslock.testing.faults import lose_wake_up, wake_early
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import present
from tests.support.watching import AsyncWatchingMemory, WatchingMemory

LONG = 60.0


class Tried:
    """A faulty store over a memory, for either API, and the verbs to call."""

    def __init__(self, *, native: bool) -> None:
        self.memory = MemoryStore()
        self.faulty = AsyncFaultyStore(AsyncMemoryStore(self.memory)) if native else FaultyStore(self.memory)
        self.store = driven(self.faulty)
        assert isinstance(self.store, QueueingStore)
        assert isinstance(self.store, BatchingStore)
        self.queueing: QueueingStore = self.store
        self.batching: BatchingStore = self.store

    def put(self, value: bytes, version: int = ABSENT) -> Entry | None:
        return self.store.put_if_version("key", value, version, LONG)

    def deliver(self) -> int:
        return on_loop(self.faulty.deliver()) if isinstance(self.faulty, AsyncFaultyStore) else self.faulty.deliver()

    @property
    def observed(self) -> bytes | None:
        entry = self.memory.get("key")
        return entry and entry.value


@pytest.fixture(params=[False, True], ids=["blocking", "asyncio"])
def tried(request: pytest.FixtureRequest) -> Tried:
    """Set one up for each API."""
    return Tried(native=request.param)


without_an_answer = pytest.mark.parametrize(
    ("fault", "applied"), [(lose_request, False), (unsent, False), (late(), False), (lose_reply, True)]
)


def test_faults_add_nothing_to_what_a_store_can_do() -> None:
    """What the store can't do, its faulty one can't either, nor the one that drives it; the three verbs do."""
    three_verbs = FaultyStore(MemoryStore(), plain=True)
    plain = FaultyStore(three_verbs), AsyncFaultyStore(AsyncFaultyStore(AsyncMemoryStore(), plain=True))
    for store in (*plain, driven(plain[1])):
        for verb in ("wait_while", "put_when_absent", "put_many", "invalidate_many"):
            assert not hasattr(store, verb)
        entry = present(driven(store).put_if_version("key", b"", ABSENT, LONG))
        assert driven(store).get("key") == entry


@without_an_answer
def test_no_answer_is_unavailable(tried: Tried, fault: Fault, applied: bool) -> None:  # noqa: FBT001 - a parameter
    """A lost, late or unsent request is not applied, one whose reply is lost is: the caller can't tell."""
    tried.faulty.on("put_if_version", 2, fault)
    assert tried.put(b"first")
    with pytest.raises(StoreUnavailable) as failure:
        tried.store.put_if_version("other", b"second", ABSENT, LONG)
    assert failure.value.sent == (fault is not unsent)
    assert (tried.memory.get("other") is not None) == applied
    assert tried.store.put_if_version("third", b"third", ABSENT, LONG), "it was planned for one call"
    assert tried.faulty.calls == {"put_if_version": 3}
    assert [request.key for request in tried.faulty.log] == ["key", "other", "third"]


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (late(before=1), [b"late", b"late", b"late"]),
        (late(before=2), [None, b"late", b"late"]),
        (late(after=2), [None, None, b"late"]),
        (late(before=9), [None, None, None]),
    ],
)
def test_what_is_late_arrives_when_it_was_planned(tried: Tried, fault: Fault, seen: list[bytes | None]) -> None:
    """A late request arrives right before or right after a later call of any verb, or when the test says so."""
    tried.faulty.on("put_if_version", 1, fault)
    with pytest.raises(StoreUnavailable):
        tried.put(b"late")
    for value in seen:
        entry = tried.store.get("key")
        assert (entry and entry.value) == value
    assert [request.value for request in tried.faulty.late] == ([] if seen[-1] else [b"late"])
    assert tried.deliver() == (0 if seen[-1] else 1)
    assert tried.observed == b"late"


def test_what_arrives_twice_is_answered_twice(tried: Tried) -> None:
    """Of a doubled request the second answer counts; of `echo` the first, and a copy arrives later."""
    tried.faulty.on("put_if_version", 1, duplicate)
    tried.faulty.on("put_if_version", 2, echo())
    first = tried.put(b"first")
    assert first == tried.memory.get("key")
    second = tried.put(b"second", first.version if first else 0)
    assert second
    assert tried.memory.invalidate("key", second.version) is None
    assert tried.deliver() == 1
    assert tried.observed is None, "it expected a version that has gone"


@pytest.mark.parametrize("applied", [False, True])
def test_a_call_may_be_cut_off(tried: Tried, applied: bool) -> None:  # noqa: FBT001 - a parameter
    """Any exception can be raised before or after the request is applied."""

    class CutOff(BaseException):
        """An exception that nobody catches by accident."""

    tried.faulty.on("any", 1, raising(CutOff, applied=applied))
    with pytest.raises(CutOff):
        tried.put(b"mine")
    assert tried.observed == (b"mine" if applied else None)


@pytest.mark.parametrize(
    ("where", "answer"), [("before", b"theirs"), ("after", b"mine"), ("after, and read again", b"theirs")]
)
def test_another_client_may_move_between(tried: Tried, where: str, answer: bytes) -> None:
    """A hook runs when a request is sent and has not arrived, or when it has arrived and is not answered."""

    def move() -> None:
        observed = tried.memory.get("key")
        tried.memory.put_if_version("key", b"theirs", observed.version if observed else ABSENT, LONG)

    plan: Callable[..., None] = tried.faulty.before if where == "before" else tried.faulty.after
    plan("put_if_version", 1, move)
    if where.endswith("again"):
        tried.faulty.on("put_if_version", 1, read_again)

    entry = tried.put(b"mine")

    assert entry
    assert entry.value == answer
    assert tried.observed == b"theirs"


def several(value: bytes) -> list[Put]:
    return [Put(key, value, ABSENT, LONG) for key in "abc"]


@without_an_answer
def test_several_requests_fail_as_one(tried: Tried, fault: Fault, applied: bool) -> None:  # noqa: FBT001 - a parameter
    """What is put or removed together is lost together, or applied and not answered; and arrives late as a whole."""
    tried.faulty.on("put_many", 1, fault)
    with pytest.raises(StoreUnavailable) as failure:
        tried.batching.put_many(several(b"mine"))
    assert failure.value.sent == (fault is not unsent)
    assert [tried.memory.get(key) is not None for key in "abc"] == [applied] * 3
    arrives = int(fault.kept)
    assert tried.deliver() == arrives
    assert [tried.memory.get(key) is not None for key in "abc"] == [applied or fault.kept] * 3

    observed = present(tried.batching.put_many(several(b"again")))
    removals = [Removal(key, entry.version) for key, entry in zip("abc", observed, strict=True) if entry]
    tried.faulty.on("invalidate_many", 1, fault)
    with pytest.raises(StoreUnavailable):
        tried.batching.invalidate_many(removals)
    assert [tried.memory.get(key) is None for key in "abc"] == [applied] * 3
    assert tried.deliver() == arrives
    assert [tried.memory.get(key) is None for key in "abc"] == [applied or fault.kept] * 3
    assert tried.faulty.calls == {"put_many": 2, "invalidate_many": 1}
    assert [request.puts for request in tried.faulty.log] == [tuple(several(b"mine")), tuple(several(b"again")), ()]
    assert tried.faulty.log[-1].removals == tuple(removals)


@without_an_answer
def test_a_wait_without_an_answer(tried: Tried, fault: Fault, applied: bool) -> None:  # noqa: FBT001 - a parameter
    """A wait can be lost, unsent, or answered in vain; late it arrives as the put that it comes to."""
    tried.faulty.on("put_when_absent", 1, fault)
    with pytest.raises(StoreUnavailable) as failure:
        tried.queueing.put_when_absent("key", b"mine", LONG, 20)
    assert failure.value.sent == (fault is not unsent)
    assert tried.observed == (b"mine" if applied else None)
    assert tried.deliver() == (1 if fault.kept else 0)
    assert tried.observed == (b"mine" if applied or fault.kept else None)
    assert tried.faulty.calls == {"put_when_absent": 1}
    assert tried.faulty.log[0] == ("put_when_absent", "key", ABSENT, b"mine", LONG, 20, (), ())


def test_a_wake_up_may_be_lost(tried: Tried) -> None:
    """A waiter that is not woken puts at its timeout, though the key was free long before."""
    tried.faulty.on("put_when_absent", 1, lose_wake_up)
    begun = time.monotonic()
    answer = tried.queueing.put_when_absent("key", b"mine", LONG, 0.2)
    assert time.monotonic() - begun >= 0.2
    assert answer == tried.memory.get("key")
    assert tried.observed == b"mine"


def test_a_wait_may_end_for_no_reason(tried: Tried) -> None:
    """A waiter that is woken early puts at once, and is shown who holds the key."""
    observed = present(tried.put(b"theirs"))
    tried.faulty.on("put_when_absent", 1, wake_early)
    with Stopwatch() as watch:
        assert tried.queueing.put_when_absent("key", b"mine", LONG, 20) == observed
    assert watch.seconds < 10


@pytest.mark.parametrize("native", [False, True], ids=["blocking", "asyncio"])
def test_a_watch_can_fail_in_every_way(native: bool) -> None:  # noqa: FBT001 - a parameter
    """A `wait_while` gets no answer, ends early or not before its timeout as planned, and else when the entry goes."""
    faulty = AsyncFaultyStore(AsyncWatchingMemory()) if native else FaultyStore(WatchingMemory())
    store = driven(faulty)
    assert isinstance(store, WatchingStore)
    for fault in (lose_request, unsent, lose_reply):
        faulty.on("wait_while", 1, fault)
        with pytest.raises(StoreUnavailable):
            store.wait_while("key", 1, 0.01)
    entry = present(store.put_if_version("key", b"theirs", ABSENT, LONG))
    faulty.on("wait_while", 1, wake_early)
    with Stopwatch() as watch:
        store.wait_while("key", entry.version, 20)
    assert watch.seconds < 10

    faulty.on("wait_while", 1, lose_wake_up)
    begun = time.monotonic()
    store.wait_while("key", entry.version + 1, 0.2)
    assert time.monotonic() - begun >= 0.2

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.wait_while, "key", entry.version, 20)
        store.invalidate("key", entry.version)
        waiting.result(50)
    assert faulty.log[0] == ("wait_while", "key", 1, b"", 0.0, 0.01, (), ())
