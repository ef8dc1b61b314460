"""What all locks on one store share: made once, by one thread, and anew in a forked child."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from caslock import Lock
from caslock.local import shared as module
from caslock.local.queue import LocalQueue
from caslock.local.shared import Shared, shared_of
from caslock.local.with_blocks import WithBlocks
from caslock.process import fork
from caslock.process.fork import generation
from caslock.process.loop_end import PerLoop
from caslock.stores.memory import MemoryStore
from tests.support.loops import in_a_loop


def is_taken(guard: threading.RLock) -> bool:
    taken: bool = guard._is_owned()  # type: ignore[attr-defined] # of the class in C
    return taken


class Racing(dict[object, object]):
    """Another thread is faster: as this one looks for the first time, it makes what is missing."""

    def __init__(self, make: object) -> None:
        self._make = make

    def get(self, key: object, default: object = None) -> object:
        make, self._make = self._make, None
        if make is None:
            return super().get(key, default)
        make()  # type: ignore[operator] # a function
        return default


class Kind:
    def __init__(self, shared: Shared) -> None:
        assert is_taken(shared._guard)


def test_everything_is_made_once() -> None:
    """Under the guard; a queue and a runtime only for as long as something refers to them."""
    shared = Shared(object())

    def queue() -> LocalQueue:
        assert is_taken(shared._guard)
        return LocalQueue()

    def part() -> object:
        assert is_taken(shared._guard)
        return object()

    line, runtime, one = shared.of_key("key", queue), shared.runtime(Kind), shared.part("one", part)
    assert shared.of_key("key", queue) is line
    assert shared.of_key("other", queue) is not line
    assert shared.part("one", part) is one
    assert shared.part("other", part) is not one
    assert shared.runtime(Kind) is runtime
    del line, runtime
    gc.collect()
    assert len(shared._of_keys) == 0
    assert isinstance(shared.runtime(Kind), Kind)


def test_two_threads_get_one_runtime() -> None:
    """Both have found none; the second one finds that of the first."""
    shared = Shared(object())
    others: list[Kind] = []
    shared._runtimes = Racing(lambda: others.append(shared.runtime(Kind)))  # type: ignore[assignment] # a dict
    assert shared.runtime(Kind) is others[0]


def test_two_threads_share_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, for what is shared at all; it is made under the guard."""
    store, others = object(), list[Shared]()

    class Guarded(Shared):
        def __init__(self, store: object) -> None:
            assert is_taken(fork.guard)
            super().__init__(store)

    monkeypatch.setattr(module, "Shared", Guarded)
    monkeypatch.setattr(module, "_known", Racing(lambda: others.append(shared_of(store))))
    assert shared_of(store) is others[0]
    assert shared_of(object()) is not others[0]


def test_stores_are_told_apart_by_identity() -> None:
    """Whatever their class takes for equal, and even if they can't be hashed."""

    class Equal:
        __hash__ = None  # type: ignore[assignment] # as of a dataclass that is not frozen

        def __eq__(self, other: object) -> bool:
            return True

    first, second = Equal(), Equal()
    kept = shared_of(first)
    assert shared_of(first) is kept
    assert shared_of(second) is not kept


def test_a_lock_that_is_made_for_one_use_leaves_its_queue_to_the_next_one(memory: MemoryStore) -> None:
    """Else none would remember that this process has had the key for long; of many keys, the oldest are forgotten."""

    def queue(key: str) -> LocalQueue:
        return Lock(memory, key)._state.begun()._queue

    one = weakref.ref(queue("k"))
    gc.collect()
    assert queue("k") is one()
    for number in range(module.MOST_RECENT):
        queue(f"other {number}")
    gc.collect()
    assert one() is None


def test_a_forked_child_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, by whichever of its threads comes first; its guard is free, though a thread of its parent had that one."""
    uses: list[Callable[[Shared], object]] = [
        lambda each: each.of_key("key", LocalQueue),
        lambda each: each.part("one", object),
    ]
    uses.append(lambda each: each.runtime(Kind))
    for use in uses:
        monkeypatch.undo()
        shared = Shared(object())
        queue, part, guard = shared.of_key("key", LocalQueue), shared.part("one", object), shared._guard
        begun: list[bool] = []
        begin = shared._begin

        def noted(begin: Callable[[], None] = begin, begun: list[bool] = begun) -> None:
            begun.append(is_taken(fork.guard))
            begin()

        monkeypatch.setattr(shared, "_begin", noted)
        monkeypatch.setattr(module, "generation", lambda: -1)
        assert use(shared) not in (queue, part)
        assert begun == [True]
        assert shared.of_key("key", LocalQueue) is not queue
        assert shared.part("one", object) is not part
        assert begun == [True]
        assert shared._guard is not guard
    guard = fork.guard
    monkeypatch.setattr(fork, "_wiped", True)
    fork._in_child()
    assert fork.guard is not guard


def test_another_thread_of_the_child_has_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was faster: it is not done again."""
    shared = Shared(object())
    generations = iter([-1, shared._generation])
    monkeypatch.setattr(module, "generation", lambda: next(generations))
    parts = shared._parts
    shared._after_fork()
    assert shared._parts is parts


def test_a_block_that_is_left_is_that_of_the_thread_that_leaves_it() -> None:
    """Its newest one; one without any leaves the newest of all, and for one alone nobody has to know who leaves it."""

    def nobody() -> object:
        raise RuntimeError("no task is running")

    me, other = object(), object()
    blocks = WithBlocks[str](first=me)
    assert blocks.newest(nobody) == "first"
    blocks |= {"second": me, "third": other, "fourth": other}
    assert blocks.newest(lambda: me) == "second"
    assert blocks.newest(lambda: other) == "fourth"
    assert blocks.newest(object) == "fourth"


@in_a_loop
async def test_another_threads_loop_may_be_added_while_this_one_looks_for_ended_loops() -> None:
    """The loop that looks gets an object of its own."""
    per_loop = PerLoop[object](object)
    loops: dict[Any, object] = per_loop._loops

    class Ended:
        def is_closed(self) -> bool:
            loops[generation(), object()] = None
            return True

    ended = generation(), Ended()
    loops[ended] = None
    assert per_loop.here() is per_loop.here()
    assert ended not in loops
    assert len(loops) == 2
