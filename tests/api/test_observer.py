"""What observers and the log are told of locks."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from caslock import (
    Hold,
    Lock,
    LockEvent,
    LockLost,
    MultiLock,
    NotAcquired,
    Observer,
    StoreUnavailable,
    log_long_waits,
    observe,
)
from caslock.local import reports
from caslock.local.workers import run
from caslock.stores.memory import MemoryStore
from caslock.testing import FaultyStore, lose_request
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import make_due, until
from tests.support.recorder import Recorder


class OfOneStore(Recorder):
    """Notes all events of one store: other tests may have left something behind that is still renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()

    def note(self, name: str, event: LockEvent) -> None:
        if event.location == self.store.traits.location:
            super().note(name, event)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfOneStore]:
    """Observe the locks of one test; nothing was warned about lately."""
    monkeypatch.setattr(reports, "_warned", {})
    recorder = OfOneStore()
    forget = observe(recorder)
    yield recorder
    forget()


def test_acquire_and_release_are_told_with_key_owner_fence_and_seconds(recorder: OfOneStore) -> None:
    """A re-entry, and the release of it, are no events."""
    store = recorder.store
    lock = Lock(store, "key")
    with Stopwatch() as watch, lock as hold, lock:
        pass
    assert recorder.names == ["acquired", "released"]
    for _, event in recorder.events:
        assert event[:4] == ("key", lock.owner, store.traits.location, hold.fence)
        assert 0 <= event.seconds <= watch.elapsed
        assert event.reason == ""


def test_only_who_meets_a_holder_is_told_to_be_busy(recorder: OfOneStore) -> None:
    """Not who gets no answer; and who waits at the store has waited, though nobody in its own process is before it."""
    store, elsewhere = FaultyStore(recorder.store), FaultyStore(recorder.store)
    lock = Lock(store, "key", retry=(0, 0))
    with store.unavailable(), pytest.raises(StoreUnavailable):
        lock.acquire(timeout=0)
    assert recorder.names == []
    held = Lock(elsewhere, "key").acquire()
    assert held
    assert lock.acquire(timeout=0.05) is None
    held.release()
    assert recorder.names == ["acquired", "waited", "busy", "released"]


def test_a_multilock_counts_from_its_first_key(recorder: OfOneStore) -> None:
    """Whether it then has the key or not."""
    state = Lock(recorder.store, "key")._state.begun()
    since = state.runtime.now() - 7000
    hold = state.begin(Hold)
    run(state.win(hold, 0.0, since=since))
    other = Lock(FaultyStore(recorder.store), "key")._state.begun()
    with pytest.raises(NotAcquired):
        run(other.win(other.begin(Hold), 0.0, since=since))
    told = [(name, round(event.seconds, -2)) for name, event in recorder.events]
    assert told == [("acquired", 7000), ("waited", 7000), ("busy", 7000)]
    hold.release()


def test_a_wait_is_told_before_its_outcome(recorder: OfOneStore, pool: ThreadPoolExecutor) -> None:
    """Busy after a wait, busy at once, and acquired after a wait; `reason` says who holds the key."""
    store = recorder.store
    lock, other = Lock(store, "key"), Lock(store, "key", note="the other")
    held = other.acquire()
    assert held
    assert lock.acquire(timeout=0.05) is None
    assert lock.acquire(timeout=0) is None

    def leave() -> None:
        assert until(lambda: other._state._queue.waiting)
        held.release()

    leaving = pool.submit(leave)
    with lock:
        leaving.result()
    mine = [(name, event) for name, event in recorder.events if event.owner == lock.owner]
    assert [name for name, _ in mine] == ["waited", "busy", "busy", "waited", "acquired", "released"]
    assert all("held by" in event.reason and event.fence is None for name, event in mine if name == "busy")
    assert mine[0][1].seconds >= 0.05


def test_each_loss_is_told_once(recorder: OfOneStore) -> None:
    """One that is first seen at the end of the block, too: on_lost and the observer agree."""
    store, lost = recorder.store, list[Hold]()
    for renew in (True, False):
        with pytest.raises(LockLost), Lock(store, "key", ttl=0.3, auto_renew=renew, on_lost=lost.append):
            Lock(store, "key").force_release()
    assert until(lambda: len(lost) == 2 and recorder.names.count("lost") == 2)
    assert recorder.names == ["acquired", "lost"] * 2 or recorder.names.count("released") == 0
    assert all(event.reason and event.seconds > 0 for name, event in recorder.events if name == "lost")


@pytest.mark.parametrize("calls_again", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_a_release_without_an_answer_is_told_once(
    recorder: OfOneStore, caplog: pytest.LogCaptureFixture, *, several: bool, calls_again: bool
) -> None:
    """Each hold has one end, also if its release is not called again: else there seem to be ever more holds."""
    caplog.set_level(logging.DEBUG, "caslock")
    store = FaultyStore(recorder.store)
    hold = MultiLock(store, ["a", "b"]).acquire() if several else Lock(store, "a").acquire()
    assert hold is not None
    with store.unavailable(), pytest.raises(StoreUnavailable):
        hold.release()
    if calls_again:
        hold.release()
    assert recorder.names.count("released") == recorder.names.count("acquired") == 1 + several
    assert recorder.events[-1][1].reason == "the release failed"
    assert caplog.messages[-1].endswith("s: the release failed")


def test_a_multilock_tells_of_each_key(recorder: OfOneStore) -> None:
    """Each key is acquired and released; of several, the one that is in use is the one that is busy."""
    store = recorder.store
    with MultiLock(store, ["a", "b"]):
        assert MultiLock(store, ["b", "c"]).acquire(timeout=0) is None
    told = [(name, event.key) for name, event in recorder.events]
    assert told[:2] == [("acquired", "a"), ("acquired", "b")]
    assert ("busy", "b") in told
    assert told[-2:] == [("released", "b"), ("released", "a")]


def test_an_observer_that_raises_concerns_no_lock(caplog: pytest.LogCaptureFixture) -> None:
    """Its exception is logged, and the next observer is told."""

    class Broken(Observer):
        def acquired(self, event: LockEvent) -> None:
            raise ValueError(event.key)

    forget, recorder = observe(Broken()), OfOneStore()
    forget_too = observe(recorder)
    with Lock(recorder.store, "key"):
        pass
    forget()
    forget_too()
    assert recorder.names == ["acquired", "released"]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["the observer Broken raised an exception"]
    with Lock(recorder.store, "key"):
        pass
    assert len(recorder.events) == 2  # nothing is told after the end


def test_each_renewal_is_told(recorder: OfOneStore, caplog: pytest.LogCaptureFixture) -> None:
    """One that gets no answer has failed, with a WARNING, and is repeated; `seconds` is what is left of the lease."""
    store = FaultyStore(recorder.store)
    for put in (2, 3):
        store.on("put_if_version", put, lose_request)
    with Lock(store, "key", ttl=60) as hold:
        before, ends = hold.remaining(), hold._attempt.lease.deadline
        make_due(hold._attempt)
        assert until(lambda: "renewal_failed" in recorder.names)
        make_due(hold._attempt)
        assert until(lambda: "renewed" in recorder.names)
        after, later = hold.remaining(), hold._attempt.lease.deadline
    assert recorder.names[:3] == ["acquired", "renewal_failed", "renewed"]
    failed, renewed = (event.seconds for _, event in recorder.events[1:3])
    assert 0 < failed <= before
    assert 0 < after <= renewed <= 60
    assert ends < later
    assert sum(f"{recorder.store.traits.location} could not be renewed" in text for text in caplog.messages) == 1


def test_an_observer_that_is_given_twice_is_told_once(recorder: OfOneStore) -> None:
    """As a handler that is added to a logger twice."""
    forget = observe(recorder)
    with Lock(recorder.store, "key"):
        pass
    forget()
    with Lock(recorder.store, "key"):
        pass
    assert recorder.names == ["acquired", "released"]


def test_what_is_no_observer_is_refused() -> None:
    """A class, and an object that lacks methods."""
    with pytest.raises(TypeError, match=r"an instance of a subclass of caslock\.Observer, not the class Recorder"):
        observe(Recorder)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not object, which lacks waited, acquired"):
        observe(object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seconds must be 0 or more, not -1"):
        log_long_waits(-1)


def test_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """DEBUG for acquire and release, INFO for a long wait, WARNING for a forced release."""
    caplog.set_level(logging.DEBUG, "caslock")
    store = MemoryStore()
    with Lock(store, "key"):
        log_long_waits(0.01)
        began = time.monotonic()
        assert Lock(store, "key").acquire(timeout=0.05) is None
        elapsed = time.monotonic() - began
        log_long_waits(1000)
        assert Lock(store, "key").acquire(timeout=0.05) is None
    Lock(store, "key", note="nightly").acquire()
    Lock(store, "key").force_release()
    location = store.traits.location  # other tests may have left something that is logged now
    said = [(record.levelname, text) for record in caplog.records if location in (text := record.getMessage())]
    said = [(level, text) for level, text in said if "was lost" not in text]  # another thread logs it, at any time
    assert [level for level, _ in said] == ["DEBUG", "INFO", "DEBUG", "DEBUG", "WARNING"]
    texts = [text for _, text in said]
    assert texts[0].startswith(f"lock 'key' at {store.traits.location} was acquired after ")
    waited = re.match(rf"waited for lock 'key' at {re.escape(location)} for ([\d.]+) s", texts[1])
    assert waited is not None, texts[1]
    assert 0.0 <= float(waited[1]) <= elapsed + 0.05  # it is told in tenths
    assert texts[2].startswith(f"lock 'key' at {store.traits.location} was released after ")
    assert "was released by force; it was held by " in texts[4]
