"""Daemon threads for what may block: requests to blocking stores, renewals, and callbacks of users.

Unlike those of `concurrent.futures`, they never delay the exit of the interpreter, and run jobs in ``atexit`` handlers.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import sys
import threading
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from caslock.fork import at_fork, generation

if TYPE_CHECKING:
    from collections.abc import Callable

LINGER: Final = 1.0
"""Seconds after which a thread without a job ends."""

LAST_JOBS: Final = 30.0
"""Seconds that the end of a subinterpreter waits for requests that are under way."""


class Workers:
    """At most `most` threads that run jobs, first come, first served; they are started on demand."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._begin()

    def _begin(self) -> None:
        # Reentrant: a signal handler may use a lock while its thread is in here.
        self._guard = threading.Condition(threading.RLock())
        self._jobs = deque["Callable[[], object]"]()
        self._threads = set[threading.Thread]()
        self._idle = 0
        self._generation = generation()

    def do(self, job: Callable[[], object], *, here: bool = True) -> None:
        """Run `job` in a thread; if none can be started, in the calling thread, or (here=False) not at all."""
        if self._generation != generation():  # a forked child has none of its parent's threads
            with _guard:
                if self._generation != generation():  # another thread of the child may have been first
                    self._begin()
        with self._guard:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._guard.notify()
                return
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            if len(self._threads) < self._most:
                thread = start(self._work, self._name, self._wake)
                if thread is not None:
                    self._threads.add(thread)
            if self._threads:
                return
            jobs, self._jobs = self._jobs, deque()
        for each in jobs if here else ():
            run_safely(each)

    def _work(self) -> None:
        while True:
            with self._guard:
                while not self._jobs:
                    self._idle += 1
                    try:
                        woken = self._guard.wait(LINGER)
                    finally:
                        self._idle -= 1
                    if not self._jobs and (closing() or not woken):
                        self._threads.discard(threading.current_thread())
                        return
                job = self._jobs.popleft()
            run_safely(job)
            del job  # and what it refers to

    def _wake(self) -> None:
        with self._guard:
            self._guard.notify_all()


_guard = threading.RLock()


def _free_guard() -> None:
    """In a forked child: another thread of the parent may have held the guard at this moment."""
    global _guard  # noqa: PLW0603 - see above
    _guard = threading.RLock()


at_fork(after_in_child=_free_guard)


def run_safely(job: Callable[[], object]) -> None:
    """Run `job`; what it raises, even a SystemExit, is reported and does not go further."""
    try:
        job()
    except BaseException:  # noqa: BLE001 - a callback may raise whatever it likes
        report()


def report() -> None:
    """Report the exception that is handled as that of a thread is; a hook that raises is reported, too."""
    thread = threading.current_thread()
    try:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
    except BaseException:  # noqa: BLE001 - of the hook
        with contextlib.suppress(Exception):
            threading.__excepthook__(threading.ExceptHookArgs((*sys.exc_info(), thread)))


def start(target: Callable[[], None], name: str, wake: Callable[[], None]) -> threading.Thread | None:
    """Start a daemon thread; None: the interpreter is at its end, or there are too many threads.

    `wake` makes the thread look at `closing`.
    """
    with contextlib.suppress(RuntimeError):
        if not in_main_interpreter():
            return _start_in_subinterpreter(target, name, wake)
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread
    return None


def closing() -> bool:
    """Whether this subinterpreter ends: every thread of caslock has to end."""
    return _closing


_closing = False
_running: list[tuple[threading.Thread, Callable[[], None]]] = []


def _start_in_subinterpreter(
    target: Callable[[], None], name: str, wake: Callable[[], None]
) -> threading.Thread | None:
    """Start a thread that is stopped before its interpreter ends: one that ran on would abort the whole process."""
    if _closing:
        return None
    _stop_at_the_end()
    try:
        thread = threading.Thread(target=target, name=name, daemon=True)
    except RuntimeError:  # isolated subinterpreters have no daemon threads
        thread = threading.Thread(target=target, name=name, daemon=False)
    thread.start()
    _running[:] = [each for each in _running if each[0].is_alive()]
    _running.append((thread, wake))
    return thread


@lru_cache(maxsize=1)
def _stop_at_the_end() -> None:
    # An `atexit` handler would run too late: the interpreter waits for threads that are no daemons before that.
    getattr(threading, "_register_atexit", atexit.register)(_stop)


def _stop() -> None:
    global _closing  # noqa: PLW0603 - every thread of caslock looks at it
    _closing = True
    for _, wake in _running:
        wake()
    for thread, _ in _running:
        thread.join(LAST_JOBS)


@lru_cache(maxsize=1)
def in_main_interpreter() -> bool:
    """Whether this is the interpreter that the process began with."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # the latter until Python 3.12
        with contextlib.suppress(ImportError):
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True
