"""A forked child holds nothing of its parent's, and an interrupt, wherever it strikes, never lets two hold one lock."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

import pytest
import tenacity  # noqa: F401 - so that no interrupt strikes in its import

import caslock
from caslock import (
    ABSENT,
    AsyncLock,
    CaslockError,
    Entry,
    Hold,
    Lock,
    MultiHold,
    MultiLock,
    NotHeld,
    QuorumLock,
    Record,
    Store,
)
from caslock.local.workers import Workers
from caslock.process import fork
from caslock.protocol.lease import Lease
from caslock.stores.memory import MemoryStore
from tests.support.command_line import python
from tests.support.locations import Place, Watched, fresh, held, make_due, observed, patient, present, until

T = TypeVar("T")

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    # What an interrupt took out of every hand, a connection or a coroutine, ends when it is collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Family:
    """A process and its child, which reports what it sees to its parent, and never leaves the `with` that made it."""

    def __init__(self) -> None:
        self.child = False
        self._read, self._write = os.pipe()
        self._pid = 0

    def fork(self) -> bool:
        """Fork; True in the child, which is killed if it has not ended in a minute."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # "the process is multi-threaded": so are our users'
            self._pid = os.fork()
        self.child = self._pid == 0
        if self.child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
        return self.child

    def tell(self, **facts: object) -> None:
        os.write(self._write, json.dumps(facts).encode() + b"\n")

    def hear(self) -> dict[str, object]:
        """Wait for the end of the child, and return all that it has reported."""
        os.close(self._write)
        with os.fdopen(self._read) as pipe:
            facts: dict[str, object] = {}
            for line in pipe:
                facts |= json.loads(line)
        facts["status"] = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return facts


@contextlib.contextmanager
def family() -> Iterator[Family]:
    """Have a child; it ends where this block does, and reports by what it has left it."""
    it = Family()
    try:
        yield it
    except BaseException as error:
        if not it.child:
            raise
        it.tell(left_by=type(error).__name__, why=str(error))
        os._exit(0)
    if it.child:
        it.tell(left_by="the end")
        os._exit(0)


ENDINGS = {"the end": None, "SystemExit": SystemExit(3), "KeyError": KeyError("of the child")}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_child_that_leaves_the_block_frees_nothing(location: Place, ending: str) -> None:
    """However a forked child leaves ``with``, the parent keeps its lock; the child holds nothing, and gets an error."""
    store, key = location.store(), fresh()
    lock = Lock(store, key, ttl=1000)
    with family() as kin, lock as hold:
        if kin.fork():
            kin.tell(lost=hold.lost, remaining=hold.remaining(), again=lock.acquire(timeout=0) is not None)
            kin.tell(by_another_object=Lock(store, key).acquire(timeout=0) is not None)
            error = ENDINGS[ending]
            if error is not None:
                raise error
        else:
            facts = kin.hear()
            assert (facts["left_by"], facts["status"]) == (ending, 0)
            assert (facts["lost"], facts["remaining"]) == (True, 0.0)
            assert (facts["again"], facts["by_another_object"]) == (False, False)
            hold.ensure_held()
            hold.extend()
            assert Lock(location.store(), key).acquire(timeout=0) is None
    assert observed(store, key) is None


EARLY_HOOK = """
import os, sys

held = []
os.register_at_fork(after_in_child=lambda: held.append(lock.acquire(timeout=0)))

from caslock import Lock
from caslock.stores.memory import MemoryStore

lock = Lock(MemoryStore(), "key", ttl=1000)
child = os.fork()
if not child:
    again = lock.acquire(timeout=0)
    os._exit(held[0].lost or again is None or again._attempt is not held[0]._attempt)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of the fork before any hook runs")
def test_what_an_earlier_hook_of_the_child_acquires_is_its_own() -> None:
    """A hook that was registered before caslock's runs before it in the child, and may lock there."""
    assert python("-c", EARLY_HOOK) == (0, "", "")


def test_a_child_can_lock_for_itself(location: Place) -> None:
    """A forked child locks another key by what it inherited, as its own owner; both go on renewing what they hold."""
    store, key = location.store(), fresh()
    other = Lock(store, fresh(), ttl=60)
    store.get(key)
    with family() as kin, Lock(store, key) as hold:
        parent = other.owner
        if kin.fork():
            with other as mine:
                record = other.holder()
                kin.tell(
                    owner=other.owner != parent and record is not None and record.owner == other.owner,
                    pid=record is not None and record.pid == os.getpid(),
                )
                first = mine._attempt.lease.deadline
                make_due(mine._attempt)  # renewed by a renewer of the child's own
                kin.tell(renewed=until(lambda: mine._attempt.lease.deadline > first))
        else:
            facts = kin.hear()
            assert facts == {"owner": True, "pid": True, "renewed": True, "left_by": "the end", "status": 0}
            hold.ensure_held()
            hold.extend()
            held(other).release()


def test_a_multi_lock_is_not_left_by_the_child(location: Place) -> None:
    """A child that leaves ``with`` of a MultiLock leaves all of the parent's holds alone."""
    store, keys = location.store(), [fresh(), fresh()]
    with family() as kin, MultiLock(store, keys, ttl=1000) as holds:
        if not kin.fork():
            assert kin.hear()["left_by"] == "the end"
            holds.extend()
            assert all(observed(store, key) for key in keys)


@pytest.mark.parametrize("between", ["asks", "locks", "does nothing"])
def test_a_grandchild_that_leaves_the_block_frees_nothing(between: str) -> None:
    """A child of the child, too, leaves the block that it never entered without an error, whatever lies between."""
    store, key = MemoryStore(), fresh()
    lock = Lock(store, key, ttl=1000)
    with family() as kin, lock as hold:
        if kin.fork():
            if between == "asks":
                lock.acquire(timeout=0)
            elif between == "locks":
                held(Lock(store, fresh(), ttl=1000))
            with family() as young, contextlib.ExitStack() as stack:
                if young.fork():
                    stack.push(lock)  # the same exit once more, from within the young family
                else:
                    kin.tell(grandchild=young.hear())
        else:
            facts = kin.hear()
            assert facts == {"grandchild": {"left_by": "the end", "status": 0}, "left_by": "the end", "status": 0}
            hold.extend()
            assert Lock(store, key).acquire(timeout=0) is None


def test_forks_in_the_midst_of_other_threads_work(location: Place) -> None:
    """Children forked while other threads are locking, and the renewer is renewing, can lock at once."""
    store, stop = location.store(), threading.Event()
    store.get("warm")

    worked = set[int]()

    def work(number: int) -> None:
        lock = Lock(store, fresh(), ttl=60)
        while not stop.is_set():
            with lock as hold:
                make_due(hold._attempt)
            worked.add(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            worked.clear()
            assert until(lambda: len(worked) == len(threads))
            with family() as kin:
                if kin.fork():
                    with Lock(store, fresh(), ttl=1000):
                        kin.tell(locked=True)
                else:
                    assert kin.hear() == {"locked": True, "left_by": "the end", "status": 0}
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_child_starts_threads_though_another_thread_of_its_parent_was_about_to() -> None:
    """Given a fork while another thread looks up the threads of a store, an AsyncLock of the child works."""
    looking, forked = threading.Event(), threading.Event()

    def look() -> None:
        with fork.guard:
            looking.set()
            forked.wait(30)

    thread = threading.Thread(target=look)
    thread.start()
    looking.wait()
    with family() as kin:
        try:
            if kin.fork():

                async def lock() -> bool:
                    return await AsyncLock(MemoryStore(), "key").acquire(timeout=0) is not None

                kin.tell(locked=asyncio.run(lock()))
            else:
                assert kin.hear() == {"locked": True, "left_by": "the end", "status": 0}
        finally:
            forked.set()
    thread.join()


LIBRARIES = (f"{Path(caslock.__file__).parent}/", "/redis/", "/pymemcache/")


def interrupted(
    moment: int,
    act: Callable[[], object],
    *later: int,
    error: type[BaseException] = KeyboardInterrupt,
    happens: Callable[[], object] | None = None,
    among: Sequence[str] = LIBRARIES,
) -> str:
    """Raise `error` at the moment-th chance that `act` gives, and return where; "" if it has ended before.

    Then again, each time after so many chances as the next of `later` says.  A chance is where Python itself looks for
    signals (ceval.c): as a function begins, and as one of C returns; not between any two lines, for a `with` would then
    leak what it holds; nor in generators, which swallow what is raised as they are closed.  Finalizers
    swallow it as well, so no garbage is collected meanwhile.  If something else `happens`, no such place is left out.
    """
    left, location, more = moment, "", list(later)

    def strike(frame: FrameType, event: str, called: object, go_on: Callable[[], object]) -> None:
        nonlocal left, location
        code = frame.f_code
        here = any(part in code.co_filename for part in among)
        # Python 3.14 looks there too, and so leaks what a `with` holds: see docs/failures.md.
        enters = getattr(called, "__name__", "") == "__enter__" and sys.version_info < (3, 15)
        if event in ("call", "c_return") and here and (happens or not (enters or code.co_name == "<genexpr>")):
            if left == 0:
                after = f" after {getattr(called, '__name__', called)}" if event == "c_return" else ""
                location += f"{moment}: {code.co_qualname}, {Path(code.co_filename).name}:{frame.f_lineno}{after}; "
                if more:
                    left = more.pop(0)
                    go_on()
                if not happens:
                    raise error
                happens()
            left -= 1

    # Python forgets each of the two once it has raised an exception, so they take turns.
    def profile(frame: FrameType, event: str, called: object) -> None:
        strike(frame, event, called, lambda: sys.settrace(trace))

    def trace(frame: FrameType, event: str, called: object) -> None:
        strike(frame, event, called, lambda: sys.setprofile(profile))

    before = sys.getprofile(), sys.gettrace()
    gc.disable()
    sys.setprofile(profile)
    try:
        act()
    except error:
        return location
    finally:
        sys.settrace(before[1])
        sys.setprofile(before[0])
        gc.enable()
    assert happens or not location, f"what was raised at {location} was swallowed"
    return location


def every_moment(
    prepare: Callable[[], Callable[[], object]], *later: int, error: type[BaseException] = KeyboardInterrupt
) -> Iterator[str]:
    """Interrupt what `prepare` makes at one chance after another until one gets through; `later`: see `interrupted`."""
    for moment in itertools.count():
        act = prepare()
        location = interrupted(moment, act, *later, error=error)
        if not location:
            assert moment > 0
            return
        yield location


class Witness:
    """Two keys with known answers, which show whether a later request reads the reply of an earlier one."""

    def __init__(self, store: Store) -> None:
        self._store, self._taken, self._free = store, fresh("taken"), fresh("free")
        assert store.put_if_version(self._taken, b"the witness", ABSENT, 3600) is not None

    def testifies(self) -> bool:
        taken = self._store.get(self._taken)
        return (
            taken is not None
            and taken.value == b"the witness"
            and self._store.get(self._free) is None
            and self._store.put_if_version(self._taken, b"another", ABSENT, 60) == taken
            and self._store.invalidate(self._taken, taken.version + 1) == taken
        )


@pytest.mark.parametrize("verb", ["get", "put_if_version", "invalidate"])
def test_a_verb_interrupted_at_any_moment_leaves_no_stale_reply(location: Place, verb: str) -> None:
    """KeyboardInterrupt at each moment of each verb, store and client library alike: the next answers are right."""
    store = location.store()
    witness = Witness(store)

    def prepare() -> Callable[[], object]:
        key = fresh()
        if verb == "get":
            return lambda: store.get(key)
        if verb == "put_if_version":
            return lambda: store.put_if_version(key, b"value", ABSENT, 1)
        entry = present(store.put_if_version(key, b"value", ABSENT, 1))
        return lambda: store.invalidate(key, entry.version)

    for moment in every_moment(prepare):
        assert witness.testifies(), f"a wrong answer after an interrupt at {moment}"


SOON: Final = 0.1
"""Seconds after which leases are renewed in some tests, although they last for a minute."""


class Scene:
    """A lock of some kind, and what one of its threads does with it."""

    def __init__(self, way: str, act: str, stores: list[MemoryStore] | None = None) -> None:
        """Prepare it; what is done with a lock that is entered once more leaves it entered once."""
        self.stores, ttl = stores or [patient() for _ in range(3)], 60
        self.key = fresh()
        self.lock: Lock | MultiLock | QuorumLock
        if way == "MultiLock":
            self.lock = MultiLock(self.stores[0], [self.key, f"{self.key}:2"], ttl=ttl)
        elif way == "QuorumLock":
            self.lock = QuorumLock(self.stores, self.key, ttl=ttl)
        else:
            self.lock = Lock(self.stores[0], self.key, ttl=ttl)
        self.hold: Hold | MultiHold | None = None
        self.outer: Hold | MultiHold | None = None
        if act.startswith("inner "):
            self.outer = self.lock.acquire(timeout=0)
        if act.endswith(("release", "with hold")):
            self.hold = self.lock.acquire(timeout=0)
        self.act = {"acquire": self._acquire, "release": self._release, "with": self._block}.get(
            act.removeprefix("inner "), self._block_of_the_hold
        )

    def _acquire(self) -> None:
        self.lock.acquire(timeout=0)

    def _release(self) -> None:
        assert self.hold is not None
        self.hold.release()

    def _block(self) -> None:
        with self.lock:
            pass

    def _block_of_the_hold(self) -> None:
        assert self.hold is not None
        with self.hold:
            pass

    def is_free(self) -> bool:
        return not self.taken

    @property
    def taken(self) -> dict[str, Record]:
        """The records of the keys that are held, by store and key."""
        places = [(store, key) for store in self.stores for key in (self.key, f"{self.key}:2")]
        records = {f"{key} at {store.traits.location}": observed(store, key) for store, key in places}
        return {place: record for place, record in records.items() if record is not None}


@pytest.mark.parametrize(
    ("way", "error"),
    [
        *((way, KeyboardInterrupt) for way in ("Lock", "MultiLock", "QuorumLock")),
        ("Lock", TimeoutError),
        *(pytest.param(way, TimeoutError, marks=pytest.mark.long) for way in ("MultiLock", "QuorumLock")),
    ],
)
@pytest.mark.parametrize(
    "act", ["acquire", "release", "with", "with hold", "inner acquire", "inner release", "inner with"]
)
def test_an_interrupted_lock_is_free_at_once(
    way: str, act: str, error: type[BaseException], pool: ThreadPoolExecutor
) -> None:
    """Ctrl-C, or a handler that raises, at each moment: only what was held before is held; any thread can have it."""
    scenes: list[Scene] = []
    other = held(Lock(MemoryStore(), fresh(), ttl=1000))  # so that the renewer is there

    def prepare() -> Callable[[], object]:
        scenes.append(Scene(way, act))
        return scenes[-1].act

    def theirs(scene: Scene) -> bool:
        hold = scene.lock.acquire(timeout=0)
        if hold is not None:
            hold.release()
        return hold is not None

    for moment in every_moment(prepare, error=error):
        scene = scenes.pop()
        if any(first in moment for first in ("__exit__", "_Held.__enter__", "_Held.release")):
            with contextlib.suppress(NotHeld):  # as these begin, nothing can be guarded
                if scene.hold is not None:
                    scene.hold.release()
                elif not act.startswith("inner ") or len(scene.lock._blocks) > 0:
                    scene.lock.release()
        if scene.outer is not None:
            assert scene.taken, moment
            assert not pool.submit(theirs, scene).result(), moment
            scene.outer.release()
        if way == "QuorumLock":  # which goes on as soon as a majority is free
            until(scene.is_free)
        assert scene.taken == {}, moment
        assert pool.submit(theirs, scene).result(), moment
        assert theirs(scene), moment
    other.release()


def test_what_lingers_is_to_be_had_wherever_an_interrupt_strikes() -> None:
    """As it is held again, and as it is released: others have it at once, and its own Lock object after that."""
    store, locks = patient(), list[Lock]()

    def prepare() -> Callable[[], object]:
        locks.append(Lock(store, fresh(), ttl=60, linger=20))
        with locks[-1]:
            pass
        return block

    def block() -> None:
        with locks[-1]:
            pass

    for moment in every_moment(prepare):
        lock = locks.pop()
        if any(first in moment for first in ("__exit__", "_Held.release")):
            with contextlib.suppress(NotHeld):
                lock.release()
        for each in (Lock(store, lock.key), lock):
            hold = each.acquire(timeout=0)
            assert hold is not None, moment
            hold.release()
        assert lock._state.committed == {}


@pytest.mark.parametrize(
    "way", ["Lock", *(pytest.param(way, marks=pytest.mark.long) for way in ("MultiLock", "QuorumLock"))]
)
@pytest.mark.parametrize("act", ["acquire", "release", "with"])
def test_nothing_is_renewed_that_two_interrupts_have_left(way: str, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second KeyboardInterrupt, as the first is being handled: what nobody can release ends with its lease.

    What is left is released if the hold is released once more, or is not renewed, though the lock lives on.
    """
    monkeypatch.setattr(Lease, "_next_renewal", lambda _lease, sent, _ttl: sent + SOON)
    scenes, moments, stores = list[Scene](), list[str](), [patient() for _ in range(3)]
    other = held(Lock(stores[0], fresh(), ttl=60))

    def prepare() -> Callable[[], object]:
        scenes.append(Scene(way, act, stores))
        return scenes[-1].act

    for later in ((0,), (1,), (2,), (3,), (5,), (8,), (13,), (21,), (34,), (55,), (89,)):
        for moment in every_moment(prepare, *later):
            moments.append(f"{later} {moment}")
            with contextlib.suppress(CaslockError):
                if act != "acquire":
                    (scenes[-1].hold or scenes[-1].lock).release()
            scenes[-1].hold = None
        scenes.pop()  # it got through
        gc.collect()  # or thousands are renewed meanwhile

    def left() -> dict[tuple[str, str], str]:
        """The write of each key that is still taken, by the moment of its first interrupt."""
        return {
            (moment, key): record.write
            for scene, moment in zip(scenes, moments, strict=True)
            for key, record in scene.taken.items()
        }

    def left_after_renewals() -> dict[tuple[str, str], str]:
        """Look after whatever is renewed at all has been renewed, and what was under way has ended."""
        ends = other._attempt.lease.deadline + 3 * SOON
        assert until(lambda: other._attempt.lease.deadline > ends)
        return left()

    def renewed() -> list[str]:
        gc.collect()  # nothing refers to what was interrupted twice, once no renewal of it is under way
        before, after = left_after_renewals(), left_after_renewals()
        return [moment for (moment, key), write in after.items() if before.get((moment, key)) != write]

    assert until(lambda: not renewed()), renewed()  # what other threads still do has an end
    other.release()


def test_an_interrupt_as_a_thread_gets_a_job_stops_no_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt at each moment, also inside of `threading`: the next job is run all the same."""
    monkeypatch.setattr(f"{__name__}.LIBRARIES", ("/workers.py", "/threading.py"))
    made: list[Workers] = []

    def prepare() -> Callable[[], object]:
        workers = Workers("test", 1)
        workers.do(lambda: None)
        assert until(lambda: workers._idle)
        made.append(workers)
        return lambda: workers.do(lambda: None)

    for moment in every_moment(prepare):
        done = threading.Event()
        made[-1].do(done.set)
        assert done.wait(200), moment


def test_an_interrupt_as_one_thread_gives_up_wakes_the_next() -> None:
    """KeyboardInterrupt at each moment of an acquire out of time: another thread of that object is not left asleep."""
    locks: list[Lock] = []
    others: list[Hold] = []
    waiting: list[Future[Hold | None]] = []
    pool = ThreadPoolExecutor(200)

    class Inviting(Watched):
        """Has another thread wait for the same object while this one is inside."""

        def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if threading.current_thread() is threading.main_thread():
                waiting.append(pool.submit(locks[-1].acquire))
                assert until(lambda: locks[-1]._state._queue.waiting)
            return super().put_if_version(key, value, version, ttl)

    def prepare() -> Callable[[], object]:
        if len(waiting) < len(locks):  # it was interrupted before it had asked
            waiting.append(pool.submit(locks[-1].acquire))
        store, key = MemoryStore(), fresh()
        others.append(held(Lock(store, key)))
        locks.append(Lock(Inviting(store), key, ttl=200))  # a sleeper looks again after so long
        return lambda: locks[-1].acquire(timeout=0)

    moments = [*every_moment(prepare), "none"]
    for hold in others:
        hold.release()
    done, _ = wait(waiting, timeout=50)
    asleep = [moment for moment, one in zip(moments, waiting, strict=True) if one not in done]
    for lock in locks:  # so that nobody sleeps on, whatever has come of this
        for attempt in lock._state._queue.waiting:
            if attempt.turn.event is not None:
                attempt.turn.event.set()
    pool.shutdown()
    assert asleep == []


SAME_KEY = """
import faulthandler, itertools, sys
faulthandler.dump_traceback_later(200, exit=True)
from caslock import Lock, StoreUnavailable
from caslock.stores.memory import MemoryStore
from caslock.stores.sqlite import SQLiteStore

store = MemoryStore() if sys.argv[1] == "memory" else SQLiteStore(sys.argv[1])
seen = set()

def handle():
    try:
        hold = Lock(store, "key").acquire(timeout=0)
        seen.add("had" if hold else "held by the program")
        if hold:
            hold.release()
    except StoreUnavailable as error:
        seen.add("inside")

for moment in itertools.count():
    left = moment
    def profile(frame, event, _):
        global left
        if event in ("call", "return", "c_call", "c_return") and "/caslock/" in frame.f_code.co_filename:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                handle()
    lock = Lock(store, "key", ttl=1000)
    sys.setprofile(profile)
    try:
        with lock:
            pass
    finally:
        sys.setprofile(None)
    if left >= 0:
        break
assert Lock(store, "key").acquire(timeout=0)
print(*sorted(seen), sep=", ")
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_signal_handler_may_use_the_same_key(kind: str, tmp_path: Path) -> None:
    """A handler with another Lock of the key that its thread is just taking gets an answer at any moment: no hang."""
    where = kind if kind == "memory" else str(tmp_path / "locks.db")
    assert python("-c", SAME_KEY, where) == (0, "had, held by the program\n", "")


COLLECTED = """
import faulthandler, gc, sys, time
faulthandler.dump_traceback_later(200, exit=True)
sys.unraisablehook = lambda unraisable: unraised.append(unraisable.exc_value)
from caslock import Lock, StoreUnavailable
from caslock.stores.memory import MemoryStore

unraised, released = [], 0

class Careless:
    def __init__(self, store, key):
        self.me, self.hold = self, Lock(store, key).acquire()
    def __del__(self):
        global released
        self.hold.release()
        released += 1

def clock():  # asked in the middle of each verb
    gc.collect()
    return time.monotonic()

store = MemoryStore(clock=clock)
for number in range(5):
    Careless(store, f"key {number}")
    with Lock(store, "other"):
        pass
gc.collect()
assert len(unraised) + released == 5
assert {type(error) for error in unraised} == {StoreUnavailable}, unraised
print("done")
"""


def test_a_del_that_releases_does_not_hang() -> None:
    """A `__del__` that the collector runs in the middle of a verb of the memory store gets an answer: no hang."""
    assert python("-c", COLLECTED) == (0, "done\n", "")


class Interruption(BaseException):
    """What a signal handler of a user's may raise."""


def interrupt(delay: float, act: Callable[[], object]) -> None:
    """Run `act`, and send signals to this thread after a while, until their handler runs and raises.

    Python handles a signal that comes just as the thread goes to sleep only as it wakes: at the next signal.
    """
    thread, heard = threading.get_ident(), threading.Event()

    def ring(_signal: int, _frame: FrameType | None) -> None:
        if not heard.is_set():
            heard.set()
            raise Interruption

    def send() -> None:
        while not heard.wait(delay):
            signal.pthread_kill(thread, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    sender = threading.Thread(target=send)
    try:
        with pytest.raises(Interruption):  # noqa: PT012 - it may come at once
            sender.start()
            act()
    finally:
        heard.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_while_waiting_leaves_nothing(location: Place) -> None:
    """A signal while acquire waits for somebody else ends it at once; the holder is left alone, and nothing behind."""
    store, key = location.store(), fresh()
    hold = held(Lock(store, key, ttl=1000))
    for delay in (0.02, 0.05, 0.1):
        interrupt(delay, Lock(store, key).acquire)
    hold.extend()
    hold.release()
    assert observed(store, key) is None


def test_an_interrupt_while_waiting_for_another_thread_leaves_nothing() -> None:
    """A signal while acquire waits for another thread of the same object ends it, and that thread is left alone."""
    store = MemoryStore()
    lock = Lock(store, fresh())
    inside, leave = threading.Event(), threading.Event()

    def holder() -> None:
        with lock:
            inside.set()
            assert leave.wait(20)

    thread = threading.Thread(target=holder)
    thread.start()
    assert inside.wait(20)
    interrupt(0.05, lock.acquire)
    leave.set()
    thread.join()
    assert observed(store, lock.key) is None
    held(lock).release()
