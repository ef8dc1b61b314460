"""Daemon threads for what may block: requests to blocking stores, renewals, and callbacks of users.

Unlike those of `concurrent.futures`, they never delay the exit of the interpreter, and run jobs in ``atexit`` handlers.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

LINGER: Final = 1.0
"""Seconds after which a thread without a job ends."""


class Workers:
    """At most `most` threads that run jobs, first come, first served; they are started on demand."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        # Reentrant: a signal handler may use a lock while its thread is in here.  It is taken directly and not through
        # the condition, whose methods are Python code: an interrupt inside of these would leave it locked.
        self._guard = RLock()
        self._more = threading.Condition(self._guard)
        self._jobs = deque["Callable[[], object]"]()
        self._threads = set[threading.Thread]()
        self._idle = 0

    def do(self, job: Callable[[], object], *, here: bool = True) -> None:
        """Run `job` in a thread; if none can be started, in the calling thread, or (here=False) not at all."""
        with self._guard:
            self._jobs.append(job)
            self._more.notify()
            if self._idle >= len(self._jobs):
                return
            if len(self._threads) < self._most and (thread := start(self._work, self._name)):
                self._threads.add(thread)
            if self._threads:
                return
            if not here:
                self._jobs.clear()
                return
            self._threads.add(threading.current_thread())
        self._work(0.0)

    def _work(self, linger: float = LINGER) -> None:
        """Run jobs until there has been none for `linger` seconds."""
        while True:
            with self._guard:
                self._idle += 1
                if not self._more.wait_for(self._jobs.__len__, linger):
                    self._threads.discard(threading.current_thread())
                self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            run_safely(job)
            del job  # and what it refers to


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # typeshed gives StopIteration.value as Any
    coroutine.close()
    message = "a store for the blocking API must not suspend: is it an AsyncStore?"
    raise RuntimeError(message)


def run_safely(job: Callable[[], object]) -> bool:
    """Run `job`; return False if it raised anything, even a SystemExit, which is reported and does not go further."""
    try:
        job()
    except BaseException:  # noqa: BLE001 - a callback may raise whatever it likes
        _report()
        return False
    return True


def _report() -> None:
    """Report the exception that is handled as that of a thread is; a hook that raises is reported, too."""
    thread = threading.current_thread()
    try:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
    except BaseException:  # noqa: BLE001 - of the hook
        with contextlib.suppress(Exception):
            threading.__excepthook__(threading.ExceptHookArgs((*sys.exc_info(), thread)))


def start(target: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a daemon thread; None: the interpreter is at its end, or there are too many threads."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    with contextlib.suppress(RuntimeError):
        thread.start()
        return thread
    return None
