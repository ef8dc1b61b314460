"""One verb of a store behind a fault proxy, and what can be done to it."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import uuid4

import pytest

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, BatchingStore, Put, Removal
from caslock.testing.drive import driven, is_async, on_loop
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.testing.steps import LONG, RECONNECT, SHORT, again, in_a_thread, put
from caslock.testing.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from caslock.store import AsyncStore, Entry, Store

T = TypeVar("T")

OWN: Final = 0.5
"""Seconds beside its timeouts that a client may need for itself."""

TRIES: Final = 10
"""The most times a verb is called while the machine is late."""

ENDS: Final = 3
"""How many of the first and of the last requests of a call have faults: a list may need thousands."""

LOOK: Final = 0.05
"""Seconds between two looks at the time while a call goes on."""

HELD: Final = 0.3
"""Seconds by which a reply is late, so that it comes after its request was interrupted."""

# How each verb is called; what a store has is only known when it is looked at, hence Any.
_CALLS: Final[dict[str, Callable[[Any, Trial], Any]]] = {
    "get": lambda store, trial: store.get(trial.key),
    "put_if_version": lambda store, trial: store.put_if_version(trial.key, trial.value, ABSENT, LONG),
    "put_if_version at a version": lambda store, trial: store.put_if_version(
        trial.key, trial.value, trial.version, LONG
    ),
    "invalidate": lambda store, trial: store.invalidate(trial.key, trial.version),
    "wait_while": lambda store, trial: store.wait_while(trial.key, trial.version, SHORT),
    "put_when_absent": lambda store, trial: store.put_when_absent(trial.key, trial.value, LONG, SHORT),
    "put_many": lambda store, trial: store.put_many([Put(key, trial.value, ABSENT, LONG) for key in trial.keys]),
    "invalidate_many": lambda store, trial: store.invalidate_many([Removal(trial.key, trial.version)]),
    "list": lambda store, trial: store.list(trial.key),
}
_AT_A_VERSION: Final = {"put_if_version at a version", "invalidate", "invalidate_many", "wait_while", "list"}


def can(store: Store) -> list[str]:
    """Return the verbs that the store supports for the keys of a trial."""
    verbs = [verb for verb in _CALLS if hasattr(store, verb.partition(" ")[0])]
    puts = [Put(f"contract:{uuid4().hex}", b"", ABSENT, SHORT) for _ in range(2)]
    if isinstance(store, BatchingStore) and store.put_many(puts) is None:
        verbs.remove("put_many")
    return verbs


def until_answered(store: Store) -> None:
    """Wait for a server that has only just started."""
    again(lambda: store.get(f"contract:{uuid4().hex}"))


class Trial:
    """One verb, a store of its own behind a proxy of its own, and a store that goes past the proxy."""

    key: str
    keys: tuple[str, str]
    value: bytes
    version: int
    mark: bytes
    """What is in a request if its key can be seen in it."""

    def __init__(self, verb: str, timeout: float, proxy: FaultProxy, raw: Store | AsyncStore, direct: Store) -> None:
        self.verb: str = verb
        self.proxy: FaultProxy = proxy
        self.raw: Store | AsyncStore = raw
        self.store: Store = driven(raw)
        self.direct: Store = direct
        self.named: bool = False
        """Whether the key can be seen in its requests."""
        self._timeout = timeout

    def prepare(self) -> None:
        """Make ready for a call, on a new key."""
        self.mark = uuid4().hex.encode()
        self.key = f"contract:{self.mark.decode()}"
        self.keys = (self.key, f"{self.key}:other")
        self.value = uuid4().hex.encode()
        self.version = ABSENT
        if self.verb in _AT_A_VERSION:
            self.version = again(lambda: put(self.direct, self.key, b"before")).version

    def call(self, store: Store) -> object:
        """Call the verb."""
        answer: object = _CALLS[self.verb](store, self)
        return list(cast("Iterator[object]", answer)) if self.verb == "list" else answer

    def learn(self) -> list[int]:
        """Call without a fault, so that the connection is open; give the numbers of its requests that carry the call.

        If the key can be seen in requests, they begin with the first that has it: one before that may only ask whether
        the connection still works.  Of many, such as a list may need, they are the first and the last.
        """
        requests = list[bytes]()

        def listen(request: bytes) -> Passage:
            requests.append(request)
            return PASS

        def call() -> None:
            self.prepare()
            requests.clear()
            self.proxy.decide = listen
            self.within_timeout(lambda: self.call(self.store))

        for _ in range(2):  # the first call may have to open a connection, and to load scripts
            again(call)
            self.proxy.decide = _pass_all
            self.clean()
        named = [number for number, request in enumerate(requests) if self.mark in request]
        self.named = bool(named)
        carry = list(range(named[0] if named else 0, len(requests)))
        return carry if len(carry) <= 2 * ENDS else carry[:ENDS] + carry[-ENDS:]

    def strike(self, number: int, passage: Passage, act: Callable[[], object] = lambda: None) -> list[bytes]:
        """Plan a fault for the request of this number from now on, and then `act`; give a list that has it then."""
        seen, struck = list[bytes](), list[bytes]()

        def decide(request: bytes) -> Passage:
            seen.append(request)
            if len(seen) != number + 1:
                return PASS
            struck.append(request)
            act()
            return passage

        self.proxy.decide = decide
        return struck

    def within_timeout(self, act: Callable[[], T]) -> T:
        """Call in a thread; check that it ends within the store's timeouts to connect and to ask."""
        waits = SHORT if self.verb in ("put_when_absent", "wait_while") else 0.0
        seconds = 2 * self._timeout + OWN + waits
        with Stopwatch() as watch:
            outcome = in_a_thread(act)
            while not wait([outcome], LOOK).done and watch.seconds <= seconds:
                pass
        late = f"{self.verb} has not ended after {seconds:g} s: the client needs a timeout of {self._timeout:g} s"
        assert outcome.done(), late
        return outcome.result()

    def must_fail(self, *, unless_right: bool = False) -> StoreUnavailable | None:
        """Check that the verb raises StoreUnavailable in time, or else, if it may, that its answer is the truth.

        `wait_while` may always end for no reason.
        """
        try:
            answer = self.within_timeout(lambda: self.call(self.store))
        except StoreUnavailable as error:
            if not error.sent and self._written():
                raise AssertionError("sent is False, and the request was applied") from error
            return error
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{self.verb} raised {error!r}, which is no StoreUnavailable") from error
        right = self.verb == "wait_while" or (unless_right and answer == self._truth())
        assert right, f"{self.verb} answered {answer!r} after a fault: does the client below retry by itself?"
        return None

    def must_be_refused(self) -> None:
        """Check that the verb raises StoreError in time, also if that is StoreUnavailable; or `wait_while` ends."""
        self.prepare()
        try:
            answer = self.within_timeout(lambda: self.call(self.store))
        except StoreError:
            self.clean()
            return
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{self.verb} raised {error!r}, which is no StoreError") from error
        assert self.verb == "wait_while", f"{self.verb} answered {answer!r} at a server that speaks another protocol"
        self.clean()

    def must_not_be_sent(self) -> None:
        """Check that the verb fails in time, and says that nothing was sent.

        If the machine was so late that there was no time to connect, the store can't know: it is asked again.
        """
        late, tries = True, 0
        error: StoreUnavailable | None = None
        while late and tries < TRIES:
            tries += 1
            with Stopwatch() as watch:
                error = self.must_fail()
            late = error is not None and error.sent and watch.late >= self._timeout / 4
        assert error is None or not error.sent, f"no connection was made, and sent is True: {error!r}"

    def must_answer_rightly(self) -> None:
        """Check that after a fault the store answers what is true; then remove what was written."""
        before = self._truth()
        observed = self.reconnected(lambda: self.store.get(self.key))
        assert observed in (before, self._truth())  # a write whose reply was lost may land in between
        self.clean()
        if self.verb == "wait_while":  # its connection may be another one, and has to be open for the next fault
            self.reconnected(lambda: self.call(self.store))

    def must_be_disconnected(self, when: str) -> None:
        """Check that no connection is left."""
        with Stopwatch() as watch:
            while still := self.proxy.connections:
                assert watch.seconds < RECONNECT, f"{still} connections are open {when}"
                time.sleep(0.005)

    def reconnected(self, act: Callable[[], T]) -> T:
        """Ask until the store has found its way back to the server."""
        self.proxy.decide = _pass_all
        return again(lambda: self.within_timeout(act))

    def skip_unless_interruptible(self) -> None:
        """Skip the test if a request can be neither cancelled nor interrupted by a signal."""
        if is_async(self.raw):
            return
        if sys.platform == "win32":
            pytest.skip("there is no signal here that could interrupt a request")
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("a signal interrupts only the main thread, and the tests run in another")

    def interrupt(self, number: int) -> None:
        """Prepare a new key, and interrupt the verb while the reply to its request of this number is under way."""
        late = Passage("hold reply", HELD)
        for left in reversed(range(TRIES)):
            self.prepare()
            try:
                if is_async(self.raw):
                    on_loop(self._cancel(number, late))
                elif sys.platform != "win32":  # `skip_unless_interruptible` was called, so this is the main thread
                    self._signal(number, late)
            except StoreUnavailable:  # on a busy machine the connection may already have been given up
                self.clean()
                if not left:
                    raise
                self.learn()
            else:
                return

    def _signal(self, number: int, late: Passage) -> None:
        main, guard, returned, sent = threading.get_ident(), threading.Lock(), list[bool](), list[bool]()

        def interrupt() -> None:
            with guard:
                if not returned:  # a call may end before its last request arrives
                    sent.append(True)
                    signal.pthread_kill(main, signal.SIGUSR1)

        self.strike(number, late, interrupt)
        with _raising(signal.SIGUSR1), contextlib.suppress(_Interrupted):
            try:
                self.call(self.store)
            except StoreUnavailable as error:
                if sent:
                    raise AssertionError("the interrupt came out as StoreUnavailable, not as itself") from error
                raise
            finally:
                with guard:
                    returned.append(True)
            assert not sent, "the request was interrupted, and that was swallowed"

    async def _cancel(self, number: int, late: Passage) -> None:
        async def call() -> None:
            answer: Any = _CALLS[self.verb](self.raw, self)
            if self.verb == "list":
                async for _ in answer:
                    pass
            else:
                await answer

        def cancel() -> None:
            if task.cancel():  # else it has ended before its last request arrived
                cancelled.append(True)
                # Up to Python 3.11 `asyncio.wait_for` swallows a cancellation that comes as it ends: then this counts.
                loop.call_later(HELD / 3, task.cancel)

        loop, cancelled = asyncio.get_running_loop(), list[bool]()
        task = loop.create_task(call())
        self.strike(number, late, lambda: loop.call_soon_threadsafe(cancel))
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await task
            except StoreUnavailable as error:
                if cancelled:
                    raise AssertionError("the cancellation came out as StoreUnavailable, not as itself") from error
                raise
            assert not cancelled, "the request was cancelled, and that was swallowed"

    def _written(self) -> bool:
        observed = self._truth()
        return observed is not None and observed.value == self.value

    def _truth(self) -> Entry | None:
        return again(lambda: self.direct.get(self.key))

    def clean(self) -> None:
        """Remove what was written."""
        for key in self.keys:
            observed = again(partial(self.direct.get, key))
            if observed is not None:
                again(partial(self.direct.invalidate, key, observed.version))


class _Interrupted(BaseException):
    """What interrupts a request, as Ctrl-C would."""


def _pass_all(_request: bytes) -> Passage:
    return PASS


@contextlib.contextmanager
def _raising(number: signal.Signals) -> Iterator[None]:
    """Let a signal raise `_Interrupted`."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _Interrupted

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)
