"""Single steps of a MultiLock, on a clock of the test: what it asks, in which order, and until when."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from caslock import (
    Entry,
    Hold,
    Lock,
    LockLost,
    MultiHold,
    MultiLock,
    NotAcquired,
    OutcomeUnknown,
    Put,
    StoreError,
    StoreUnavailable,
)
from caslock.local import clock
from caslock.local.holds import _worse
from caslock.local.queue import LocalQueue
from caslock.local.shared import shared_of
from caslock.local.threads import ThreadRuntime
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import PASSES
from caslock.protocol.record import Record, decode, encode
from caslock.store import ABSENT
from caslock.stores.memory import MemoryStore
from caslock.testing.faults import FaultyStore, late, lose_request
from tests.support.locations import Watched, observed, present, until

TIMEOUT = 5.0
"""Seconds of a request without an answer."""


class Clock:
    passed = 0.0


class Timed(Watched):
    """A store without batches whose requests take time, on the clock of the test, while it does not answer."""

    def __init__(self, location: str = "", clock: Clock | None = None) -> None:
        super().__init__(memory := MemoryStore())
        self.memory = memory
        self.traits = memory.traits._replace(request_timeout=TIMEOUT, location=location or memory.traits.location)
        self.refused: Callable[[str, str], bool] = lambda _verb, _key: False
        self.slow = False
        self.clock = clock or Clock()

    @property
    def passed(self) -> float:
        return self.clock.passed

    @passed.setter
    def passed(self, value: float) -> None:
        self.clock.passed = value

    def _pass(self, verb: str, key: str) -> None:
        self.requests.append((verb, key))
        if self.refused(verb, key):
            raise StoreError("refused")
        if self.slow:
            self.passed += TIMEOUT
        if self.lose(verb, key):
            self.passed += TIMEOUT
            raise StoreUnavailable("no answer")


class Background:
    def __init__(self) -> None:
        self.left = 0


def acquired(lock: MultiLock) -> MultiHold:
    """Acquire what is free, and forget what was asked for that."""
    holds = present(lock.acquire())
    for hold in holds:
        log = getattr(hold._state.runtime.home, "requests", [])
        log.clear()
    return holds


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """Return a store; the clock of all threads is its own, and a sleep of the test is over at once."""
    store = Timed()
    test, really = threading.current_thread(), ThreadRuntime.sleep

    async def sleep(runtime: ThreadRuntime, seconds: float) -> None:
        if threading.current_thread() is test:
            store.passed += seconds
        else:  # a clean-up that an earlier test has left in the background
            await really(runtime, seconds)

    began = clock.now()
    monkeypatch.setattr(ThreadRuntime, "now", staticmethod(lambda: began + store.passed))
    monkeypatch.setattr(ThreadRuntime, "sleep", sleep)
    return store


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Background:
    """Return what counts the clean-ups that are left to the background."""
    background = Background()

    def in_background(_runtime: ThreadRuntime, _settle: object, _seconds: float) -> None:
        background.left += 1

    monkeypatch.setattr(ThreadRuntime, "in_background", in_background)
    return background


@pytest.mark.parametrize("lost", [False, True])
def test_the_release_of_many_keys_without_an_answer_has_one_bound(
    store: Timed, background: Background, *, lost: bool
) -> None:
    """No request begins after two request timeouts: the keys that are left are released in the background."""
    holds = acquired(MultiLock(store, list("abcdef"), ttl=300, auto_renew=False))
    store.passed += 1000 * lost
    before = store.passed
    store.lose = lambda _verb, _key: True
    with pytest.raises(LockLost if lost else StoreUnavailable) as caught:
        holds.release()
    assert store.passed - before <= 2 * TIMEOUT
    if lost:  # each was tried once
        assert background.left == 6
    else:
        assert store.requests == [("invalidate", "f"), ("get", "f")]
        assert background.left == 5
        texts = [str(caught.value), *caught.value.__notes__]
        assert [f"'{key}'" in text for key, text in zip("fedcba", texts, strict=True)] == [True] * 6


def test_a_store_that_is_slow_is_asked_for_all_keys(store: Timed, background: Background) -> None:
    """While it answers, however slowly, each key is released."""
    holds = acquired(MultiLock(store, list("abcdef"), ttl=300))
    store.slow = True
    holds.release()
    assert store.requests == [("invalidate", key) for key in "fedcba"]
    assert background.left == 0


def test_a_key_that_was_held_before_is_not_released_in_the_background(store: Timed, background: Background) -> None:
    """A MultiLock that re-enters a lock leaves it held, though the other keys of it get no answer."""
    first, second = Lock(store, "a", ttl=300), Lock(store, "b", ttl=300)
    outer = present(first.acquire())
    holds = acquired(MultiLock([first, second]))
    store.lose = lambda _verb, _key: True
    with pytest.raises(StoreUnavailable):
        holds.release()
    assert {key for _, key in store.requests} == {"b"}
    assert background.left == 0
    outer.ensure_held()


def test_several_waits_have_one_deadline_for_their_retries(store: Timed) -> None:
    """An acquire without an answer ends soon after its timeout, however often it may be tried again."""
    store.lose = lambda _verb, _key: True
    began = store.passed
    with pytest.raises(StoreUnavailable):
        MultiLock(store, ["a", "b"], timeout=7.0, retry=(50, 50)).acquire()
    assert store.passed - began <= 7.0 + 2 * TIMEOUT


def test_all_keys_are_waited_for_under_one_deadline(store: Timed) -> None:
    """What was spent on the first is not there for the second; the error says so, and which key was not had."""
    first, second = (present(Lock(store.memory, key).acquire()) for key in "ab")

    def leave(_verb: str, key: str) -> bool:
        if key == "a" and store.passed >= 3 and first._is_open:
            first.release()
        return False

    store.lose = leave
    told = rf"^lock 'b' .* held by {second.owner} .*\(waited 5 s for all keys, the last 2 s for this one\)$"
    with pytest.raises(NotAcquired, match=told):
        MultiLock(store, ["a", "b"], poll=lambda _state: 0.5, timeout=5).__enter__()
    assert {key for _, key in store.requests} == {"a", "b"}
    assert store.passed == pytest.approx(5, abs=0.2)


def test_a_lost_key_is_no_reason_for_doubt(store: Timed) -> None:
    """One that another owner has by now needs no release: the acquire has failed for certain."""
    theirs = Timed()
    theirs._store = store.memory
    Lock(theirs, "b", ttl=300).acquire()

    def take(verb: str, key: str) -> bool:
        if (verb, key) == ("put", "b"):
            entry = present(store.memory.get("a"))
            store.memory.invalidate("a", entry.version)
            assert Lock(theirs, "a", ttl=300).acquire(timeout=0) is not None
        return False

    store.lose = take
    assert MultiLock(store, ["a", "b"], ttl=300, timeout=0).acquire() is None


def test_a_refusal_stays_one_though_a_key_could_not_be_given_back(store: Timed, background: Background) -> None:
    """Nobody is told that the outcome is unknown where the store has refused a key."""
    store.refused = lambda verb, key: (verb, key) == ("put", "b")
    store.lose = lambda verb, _key: verb in ("invalidate", "get")
    with pytest.raises(StoreError, match="refused") as caught:
        MultiLock(store, ["a", "b"], ttl=300).acquire()
    assert type(caught.value) is StoreError
    assert background.left > 0


@pytest.mark.parametrize(("keys", "waited"), [("a", r"\(waited [^ ]+ s\)"), ("ab", r"\(waited [^ ]+ s for all keys")])
def test_the_error_says_for_what_it_has_waited(store: Timed, keys: str, waited: str) -> None:
    """For one key, or for several."""
    Lock(store.memory, keys[-1]).acquire()
    with pytest.raises(NotAcquired, match=waited):
        MultiLock(store, list(keys), timeout=0).__enter__()
    assert keys == "a" or observed(store.memory, "a") is None


def test_one_key_is_no_batch_and_two_are(memory: MemoryStore) -> None:
    """What is sent for one key is what a Lock sends."""
    store = FaultyStore(memory)
    for keys, verbs in (("a", {"put_if_version": 1, "invalidate": 1}), ("ab", {"put_many": 1, "invalidate_many": 1})):
        store.calls.clear()
        with MultiLock(store, list(keys)):
            pass
        assert store.calls == verbs
    held, other = Lock(store, "a"), Lock(store, "b")
    with held:
        store.calls.clear()
        with MultiLock([held, other]):
            pass
        assert store.calls == {"put_if_version": 1, "invalidate": 1}


def test_a_key_that_is_not_held_is_a_key_error(memory: MemoryStore) -> None:
    """As of a dict: the error is the key, and says more only if several stores have it."""
    holds = acquired(MultiLock(memory, ["a", "b"]))
    with pytest.raises(KeyError) as caught:
        holds["c"]
    assert caught.value.args == ("c",)
    holds.release()


def test_several_stores_are_locked_in_the_order_of_their_servers(store: Timed) -> None:
    """Not of their locations, which are names that a process gives them; one store is not asked for its server."""
    log: list[tuple[str, str]] = []
    first, second = (Named(location, server, log) for location, server in (("memory://a", "z"), ("memory://b", "y")))
    acquired(MultiLock([Lock(first, "k"), Lock(second, "k")])).release()
    assert log == [
        ("identify", "z"),  # the first time without an answer
        ("identify", "z"),
        ("identify", "y"),
        ("identify", "y"),
        *[(verb, server) for verb, servers in (("put", "yz"), ("invalidate", "zy")) for server in servers],
    ]
    log.clear()
    acquired(MultiLock(first, ["a", "b"])).release()
    assert "identify" not in {verb for verb, _ in log}
    del store


class Named(Timed):
    """A store that says which server it is, but not the first time; its log has that name in place of keys."""

    def __init__(self, location: str, server: str, log: list[tuple[str, str]]) -> None:
        super().__init__(location)
        self.server, self.all, self.asked = server, log, False

    def identify(self) -> str:
        self._pass("identify", "")
        first, self.asked = not self.asked, True
        if first:
            raise StoreUnavailable("no answer")
        return self.server

    def _pass(self, verb: str, key: str) -> None:
        del key
        self.all.append((verb, self.server))


def test_whoever_waits_after_a_lost_batch_is_in_the_local_queue(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """Another process has had the first key meanwhile; nobody of this one asks the store beside the one who waits."""
    store, rival = FaultyStore(memory), Lock(FaultyStore(memory), "a")
    store.on("put_many", 1, lose_request)
    taken: list[Hold | None] = []
    store.after("put_many", 1, lambda: taken.append(rival.acquire(timeout=0)))
    waiting = pool.submit(MultiLock(store, ["a", "b"]).acquire, timeout=200)
    assert until(lambda: store.calls["put_when_absent"])
    (theirs,) = taken
    assert theirs is not None
    assert shared_of(store).of_key("a", LocalQueue).inside(clock.now())
    assert not shared_of(store).of_key("b", LocalQueue).inside(clock.now())
    theirs.release()
    holds = present(waiting.result(200))
    holds.release()


def test_a_late_put_of_an_attempt_that_stepped_back_is_kept_out(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """It goes on as the same attempt, and so knows what may still arrive: nothing is left after the release."""
    store, keys = FaultyStore(memory), ["a", "b", "c"]
    before = present(Lock(FaultyStore(memory), "a").acquire())
    store.on("put_many", 2, late())  # of "b" and "c"
    taken: list[Hold | None] = []
    rivals = [Lock(FaultyStore(memory), key) for key in "bc"]
    store.after("put_many", 2, lambda: taken.extend(rival.acquire(timeout=0) for rival in rivals))
    lock = MultiLock(store, keys)
    waiting = pool.submit(lock.acquire, timeout=200)
    assert until(lambda: store.calls["put_when_absent"])
    before.release()
    assert until(lambda: store.calls["put_when_absent"] > 1)
    for theirs in taken:
        assert theirs is not None
        theirs.release()
    holds = present(waiting.result(200))
    assert [len(state._held) for state in lock._state.states] == [1, 1, 1]
    holds.release()
    assert [len(state._held) for state in lock._state.states] == [0, 0, 0]
    store.deliver()
    left = [entry for key in keys if (entry := memory.get(key)) is not None]
    assert all(decode(entry.value).free for entry in left)


def test_a_loss_after_a_step_back_is_told(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """The step back was a release of a key that was taken again later: it is none of the tenure that was lost."""
    store, rival = FaultyStore(memory), Lock(FaultyStore(memory), "b")
    store.on("put_many", 1, lose_request)
    theirs = present(rival.acquire())
    lock = MultiLock(store, ["a", "b", "c"])
    waiting = pool.submit(lock.acquire, timeout=200)
    assert until(lambda: store.calls["put_when_absent"])
    theirs.release()
    holds = present(waiting.result(200))
    Lock(FaultyStore(memory), "c").force_release()
    with pytest.raises(LockLost):
        holds["c"].release()
    holds.release()


def test_a_key_that_is_yielded_to_others_is_not_queued_for(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """While it waits for the first key, another thread gets the second one, which this process was to yield."""
    store = FaultyStore(memory)
    theirs = present(Lock(FaultyStore(memory), "a").acquire())
    shared = shared_of(store)
    queue = shared.of_key("b", LocalQueue)
    queue._yields, queue._yields_until = 0.001, NEVER
    waiting = pool.submit(MultiLock(store, ["a", "b"]).acquire, timeout=200)
    assert until(lambda: store.calls["put_when_absent"])
    assert not queue.inside(clock.now())
    with Lock(store, "b", timeout=0):
        theirs.release()
    holds = present(waiting.result(200))
    holds.release()


def test_holds_that_are_released_one_by_one_are_forgotten(memory: MemoryStore) -> None:
    """Nothing grows, though `MultiLock.release` is never called; and all are extended together."""
    lock = MultiLock(memory, ["a", "b"])
    for _ in range(10):
        holds = acquired(lock)
        holds.extend(300)
        assert holds.remaining() > 200
        for hold in holds:
            hold.release()
    assert len(lock._state.committed) == 1


@pytest.mark.usefixtures("background")
def test_releases_without_an_answer_are_forgotten_but_for_the_newest(store: Timed) -> None:
    """That one can be released again at the lock; nothing grows, though nobody does so."""
    lock, holds = MultiLock(store, ["a", "b"], ttl=300), None
    for _ in range(5):
        holds = acquired(lock)
        store.lose = lambda _verb, _key: True
        with pytest.raises(StoreUnavailable):
            holds.release()
        store.lose = lambda _verb, _key: False
        for key in "ab":
            entry = present(store.memory.get(key))
            store.memory.invalidate(key, entry.version)
    assert len(lock._state.committed) <= 2
    assert lock._state.newest_hold() is holds


def test_the_locks_of_a_multi_lock_keep_its_holds_too(memory: MemoryStore) -> None:
    """Whoever drops the MultiLock and what it has returned can still release them."""
    locks = [Lock(memory, key) for key in "ab"]
    assert MultiLock(locks).acquire() is not None
    gc.collect()
    for lock in locks:
        lock.release()
        assert memory.get(lock.key) is None


def test_keys_are_taken_in_the_order_of_their_stored_names(store: Timed) -> None:
    """Two keys of a store may be stored under names of another order, which all processes see."""
    reverse: Callable[[str], str] = lambda key: key[::-1]  # noqa: E731 - typed
    store.stored_name = reverse  # type: ignore[attr-defined] # an optional verb
    holds = present(MultiLock(store, ["ab", "ba"]).acquire())
    assert [hold.key for hold in holds] == ["ba", "ab"]
    holds.release()


def test_the_worst_error_is_raised() -> None:
    """A loss before no answer; the other one is its note."""
    loss, silence, refusal = LockLost("lost"), StoreUnavailable("no answer"), NotAcquired("busy")
    for failure, error, raised in (
        (None, refusal, refusal),
        (silence, loss, loss),
        (loss, silence, loss),
        (refusal, loss, refusal),
    ):
        assert _worse(failure, error) is raised
    assert len(loss.__notes__) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_gives_back_within_two_request_timeouts(
    store: Timed, background: Background, error: type[BaseException]
) -> None:
    """However many keys are held: what a silent store does not take back is left to the background.

    An error that a signal handler raises is undone where it strikes, like any other, and that takes one more.
    """

    def interrupted(verb: str, key: str) -> bool:
        if (verb, key) == ("put", "d"):
            raise error
        return verb != "put"

    store.lose = interrupted
    before = store.passed
    with pytest.raises(error) as caught:
        MultiLock(store, list("abcde"), ttl=300).acquire()
    assert store.passed - before <= (TIMEOUT if error is KeyboardInterrupt else 2 * TIMEOUT)
    assert {key for verb, key in store.requests[4:]} <= {"c", "d"}
    assert background.left >= 4
    assert "'d'" in caught.value.__notes__[0]


def test_a_failed_multi_lock_leaves_what_was_held_before(store: Timed, background: Background) -> None:
    """It has re-entered a lock, and gets no answer for another key in time: the outer hold is still held."""
    first, second = Lock(store, "a", ttl=300), Lock(store, "b", ttl=300)
    outer = present(first.acquire())
    store.lose = lambda _verb, key: key == "b"
    with pytest.raises(StoreUnavailable):
        MultiLock([first, second]).acquire(timeout=0)
    outer.ensure_held()
    assert background.left == 1  # what may arrive of "b"
    outer.release()
    assert store.memory.get("a") is None


def test_a_key_that_a_failed_multi_lock_holds_is_not_asked_for_too_late(store: Timed, background: Background) -> None:
    """Another key got no answer, and the time for requests is over: it is released in the background, and told."""
    store.lose = lambda _verb, key: key == "b"
    with pytest.raises(StoreUnavailable) as caught:
        MultiLock(store, ["a", "b"], ttl=300).acquire(timeout=0)
    assert [verb for verb, key in store.requests if key == "a"] == ["put"]
    assert background.left == 2
    (note,) = [note for note in caught.value.__notes__ if "'a'" in note]
    assert "stopped answering: lock 'a' is released in the background, and expires within 300 s" in note


def test_a_slow_store_is_asked_to_take_back_what_was_acquired(store: Timed, background: Background) -> None:
    """However late it is: it does answer."""
    Lock(store.memory, "b").acquire()
    store.slow = True
    assert MultiLock(store, ["a", "b"], ttl=300).acquire(timeout=0) is None
    assert store.memory.get("a") is None
    assert background.left == 0


class TimedBatches(Timed):
    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        self._pass("put_many", "")
        return self.memory.put_many(puts)


def free_record() -> Record:
    """Return what another process writes after a lost reply, or by `force_release`."""
    quarantine_id = f"of another process, {uuid4().hex}"
    return Record("other", (), 60.0, quarantine_id, quarantine=60.0, quarantine_id=quarantine_id)


def leave_free_record(store: Timed, key: str) -> None:
    assert store.memory.put_if_version(key, encode(free_record()), ABSENT, 60.0)


@pytest.mark.parametrize("timeout", [0, 0.2, None])
@pytest.mark.parametrize("free", ["all", "one"])
def test_keys_with_free_records_are_acquired_by_two_requests(store: Timed, timeout: float | None, free: str) -> None:
    """The answer to the first request has told the versions of all."""
    together, keys = TimedBatches(clock=store.clock), [f"key {number}" for number in range(50)]
    for key in keys if free == "all" else keys[30:31]:
        leave_free_record(together, key)
    holds = MultiLock(together, keys).acquire(timeout=timeout)
    assert holds
    assert together.requests == [("put_many", ""), ("put_many", "")]
    assert store.passed == 0


def test_a_key_that_is_held_among_free_records_is_waited_for_alone(store: Timed) -> None:
    """The keys before it are held, those behind it are left to others."""
    together, keys = TimedBatches(clock=store.clock), list("abcdef")
    together.memory.put_if_version("d", b"of another program", ABSENT, 1000.0)
    for key in "abcef":
        leave_free_record(together, key)
    assert MultiLock(together, keys).acquire(timeout=0.2) is None
    assert together.requests[:4] == [("put_many", ""), ("put_many", ""), ("put_many", ""), ("put", "d")]
    assert {key for verb, key in together.requests[4:]} == set("abcd")


def test_keys_whose_records_keep_changing_are_acquired_one_by_one(store: Timed) -> None:
    """Those behind the first are left to others meanwhile, also to those of this process."""
    together, keys, had = TimedBatches(clock=store.clock), list("abc"), list[bool]()

    def change(verb: str, key: str) -> bool:
        if verb == "put_many" and not had:
            for each in keys:
                entry, record = together.memory.get(each), free_record()
                together.memory.put_if_version(each, encode(record), entry.version if entry else ABSENT, 60.0)
        elif (verb, key, had) == ("put", "a", []):
            with Lock(together, "c", timeout=0):
                had.append(True)
        return False

    together.lose = change
    with MultiLock(together, keys):
        pass
    assert [verb for verb, _key in together.requests[:PASSES]] == ["put_many"] * PASSES
    assert had == [True]


@pytest.mark.parametrize(("interrupted", "timeout"), [(True, 0), (True, 1000), (False, 0)])
def test_several_puts_without_an_answer_are_given_up_together(
    store: Timed, background: Background, *, interrupted: bool, timeout: float
) -> None:
    """Under one bound (one request's, after an interrupt): one key is read, and each put may still land."""

    def act(verb: str, _key: str) -> bool:
        if verb == "put_many" and interrupted:
            raise KeyboardInterrupt
        return True

    batches = TimedBatches(clock=store.clock)
    batches.lose = act
    kind, keys = (KeyboardInterrupt, "dcba") if interrupted else (OutcomeUnknown, "dcb")
    with pytest.raises(kind) as caught:
        MultiLock(batches, list("abcd"), ttl=300, timeout=timeout).acquire()
    assert batches.requests == [("put_many", ""), ("get", "d" if interrupted else "a")]
    assert background.left == 4
    assert [f"'{key}'" in note for key, note in zip(keys, caught.value.__notes__, strict=True)] == [True] * len(keys)
    assert interrupted or "'a'" in str(caught.value)


def test_keys_of_which_nothing_is_left_are_not_named(store: Timed, background: Background) -> None:
    """The error is about the key that may have been acquired."""
    batches = TimedBatches(clock=store.clock)
    batches.lose = lambda verb, key: verb == "put_many" or key == "a"
    with pytest.raises(OutcomeUnknown, match="'a'") as caught:
        MultiLock(batches, list("abc"), ttl=300, timeout=1000).acquire()
    assert {key for verb, key in batches.requests if verb == "get"} == {"a", "b", "c"}
    assert background.left == 1
    assert getattr(caught.value, "__notes__", []) == []


def test_after_an_interrupt_no_key_is_asked_for_too_late(store: Timed, background: Background) -> None:
    """Not even at another store, which has answered: its key is released in the background."""

    def act(verb: str, _key: str) -> bool:
        if verb == "put_many":
            raise KeyboardInterrupt
        return True

    first, second = Timed("a://"), TimedBatches(clock=store.clock)
    second.lose = act
    with pytest.raises(KeyboardInterrupt):
        MultiLock([Lock(first, "a"), Lock(second, "b"), Lock(second, "c")]).acquire()
    assert first.requests == [("put", "a")]
    assert second.requests == [("put_many", ""), ("get", "c")]
    assert background.left == 3
