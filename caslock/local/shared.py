"""What all locks on one store object have in common in this process: local queues, threads, and runtimes."""

from __future__ import annotations

import weakref
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.process import fork
from caslock.process.fork import generation

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOST_RECENT: Final = 32
"""Lock objects whose local queues are kept."""


class Shared:
    """What belongs to one store object.  A forked child begins with a new one at its first use."""

    def __init__(self, store: object) -> None:
        self.store = store
        self._runtimes: dict[object, weakref.ref[object]] = {}  # weakly, for they refer to us
        self._begin()

    def _begin(self) -> None:
        self._guard = RLock()  # a signal handler may use a lock while its thread is in here
        self._parts: dict[str, object] = {}
        self._of_keys = weakref.WeakValueDictionary[tuple[object, str], object]()
        self._recent = deque[object](maxlen=MOST_RECENT)
        self._generation = generation()  # last, because other threads of a child then rely on the rest

    def of_key(self, key: str, kind: Callable[[], T]) -> T:
        """Return the one thing of a kind that this process has for `key`, for as long as something refers to it."""
        self._after_fork()
        with self._guard:
            found: T | None = self._of_keys.get((kind, key))  # type: ignore[assignment] # one kind makes one type
            if found is None:
                found = self._of_keys[kind, key] = kind()
            return found

    def keep(self, runtime: object, queue: object) -> None:
        """Keep a runtime, and so the store, until 4 other Lock objects have been used, and a local queue until 32 have.

        Without this, both would end with a Lock that is made for one use.  Each use would make them anew, which takes
        8 % of its time on Redis, and no queue would remember that this process has had the key for long and is to let
        others go first.
        """
        self._recent.append(queue)
        _recent.append(runtime)

    def part(self, name: str, make: Callable[[], T]) -> T:
        """Return what all locks on the store share under this name; `make` makes it at first use."""
        self._after_fork()
        with self._guard:
            if name not in self._parts:
                self._parts[name] = make()
            part: T = self._parts[name]  # type: ignore[assignment] # one name is one type
            return part

    def runtime(self, kind: Callable[[Shared], T]) -> T:
        """Return the one runtime of a kind for the store."""
        self._after_fork()
        reference = self._runtimes.get(kind)
        runtime = None if reference is None else reference()
        if runtime is None:
            with self._guard:
                reference = self._runtimes.get(kind)
                runtime = (None if reference is None else reference()) or kind(self)
                self._runtimes[kind] = weakref.ref(runtime)
        return runtime  # type: ignore[return-value] # one kind makes one type

    def _after_fork(self) -> None:
        if self._generation != generation():
            with fork.guard:
                if self._generation != generation():  # another thread of the child may have been first
                    self._begin()


def shared_of(store: object) -> Shared:
    """Return what all locks on `store` share in this process."""
    shared = _known.get(id(store))
    if shared is None:
        with fork.guard:
            shared = _known.get(id(store))
            if shared is None:
                shared = _known[id(store)] = Shared(store)
    return shared


_known: weakref.WeakValueDictionary[int, Shared] = weakref.WeakValueDictionary()
"""By `id(store)`, so stores that compare equal stay apart.  A `Shared` keeps its store alive, and so its id unique.

A key that has a `__hash__` in Python would run it as a `Shared` is collected, where Python swallows an interrupt.
"""

_recent: Final = deque[object](maxlen=4)
"""The runtimes of the last locks: see `Shared.keep`."""
