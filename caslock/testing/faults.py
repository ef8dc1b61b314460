"""Stores that lose, delay, duplicate or interrupt requests as a test specifies.

``faulty = FaultyStore(store)``, then ``faulty.on("put_if_version", 1, lose_reply)``: the next put is applied and gets
no answer.  A late request arrives when the test calls ``faulty.deliver()``, or right before or after a later call, as
in ``late(before=2)``.  ``faulty.before("get", 1, hook)`` lets another client act at that moment.

A faulty store has `wait_while`, `put_when_absent`, `put_many` and `invalidate_many` if the store below has them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from caslock.errors import StoreError, StoreUnavailable
from caslock.local.workers import run
from caslock.store import ABSENT
from caslock.testing.drive import done

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from caslock.store import (
        AsyncStore,
        BatchingStore,
        Entry,
        Put,
        QueueingStore,
        Removal,
        Store,
        Traits,
        WatchingStore,
    )

T = TypeVar("T")

Verb: TypeAlias = Literal[
    "get", "put_if_version", "invalidate", "wait_while", "put_when_absent", "put_many", "invalidate_many", "any"
]

_TWICE: Final = 2


class Fault(NamedTuple):
    """What becomes of one request, and what its caller is told."""

    applied: int = 1
    """How often it arrives at once; the caller gets the last answer, as from a client that repeats by itself."""
    error: Callable[[], BaseException] | None = None
    """What is raised in place of the answer."""
    kept: bool = False
    """Whether a copy stays under way."""
    before: int | None = None
    """That copy arrives right before this one of the following calls (1: the next)."""
    after: int | None = None
    """That copy arrives right after this one of the following calls."""
    reads_again: bool = False
    """Whether the answer is read by a second request, as by a store that can't tell a loser at once who is there."""
    wakes: Literal["in time", "early", "never"] = "in time"
    """When a wait ends; never: at its timeout."""

    def __str__(self) -> str:
        """Say what happens."""
        words = [("not applied", "applied")[self.applied] if self.applied < _TWICE else f"applied {self.applied} times"]
        words.append("not answered" if self.error else "answered")
        if self.wakes != "in time":
            words.append(f"{self.wakes} woken")
        if self.kept:
            moment = (
                f" before call +{self.before}" if self.before else f" after call +{self.after}" if self.after else ""
            )
            words.append(f"and a copy arrives later{moment}")
        return ", ".join(words)


def _no_answer() -> BaseException:
    return StoreUnavailable("no answer, as the test has planned")


def _no_connection() -> BaseException:
    return StoreUnavailable("no connection, as the test has planned", sent=False)


lose_request: Final = Fault(applied=0, error=_no_answer)
"""It never arrives, which the caller can't know."""

lose_reply: Final = Fault(error=_no_answer)
"""It is applied, and the caller gets no answer."""

unsent: Final = Fault(applied=0, error=_no_connection)
"""It can't be sent, and the caller knows that."""

duplicate: Final = Fault(applied=2)
"""It is applied twice in a row, and the caller gets the second answer."""

read_again: Final = Fault(reads_again=True)
"""It is applied, and its answer is the entry a moment later (an ``after`` hook comes between)."""

lose_wake_up: Final = Fault(wakes="never")
"""For `put_when_absent` and `wait_while`: nothing ends the wait before its timeout."""

wake_early: Final = Fault(wakes="early")
"""For `put_when_absent` and `wait_while`: the wait ends at once."""


def late(*, before: int | None = None, after: int | None = None) -> Fault:
    """It gets no answer, and arrives later: right before or after that following call, else by ``deliver()``."""
    return Fault(applied=0, error=_no_answer, kept=True, before=before, after=after)


def echo(*, before: int | None = None, after: int | None = None) -> Fault:
    """It is applied and answered, and a second copy of it arrives later, as with `late`."""
    return Fault(kept=True, before=before, after=after)


def raising(error: Callable[[], BaseException], *, applied: bool) -> Fault:
    """It raises ``error()``, a KeyboardInterrupt for example, before or after it is applied."""
    return Fault(applied=int(applied), error=error)


class Request(NamedTuple):
    """One call of a verb."""

    verb: str
    """The name of the method."""
    key: str = ""
    """Empty if it has several."""
    version: int = ABSENT
    """The version that has to be there, or that is waited for to go."""
    value: bytes = b""
    """What was to be written."""
    ttl: float = 0.0
    """Seconds."""
    timeout: float = 0.0
    """Of a wait, in seconds."""
    puts: tuple[Put, ...] = ()
    """Of `put_many`."""
    removals: tuple[Removal, ...] = ()
    """Of `invalidate_many`."""


@dataclass
class _Plan:
    verb: Verb
    numbers: range
    what: Fault | Callable[[], object]
    when: Literal["fault", "before", "after"]
    seen: int = 0

    def meets(self, verb: str) -> bool:
        if self.verb not in (verb, "any"):
            return False
        self.seen += 1
        return self.seen in self.numbers


class _Late(NamedTuple):
    request: Request
    send: Callable[[], object]
    before: int | None  # number of the call
    after: int | None


class _Call(NamedTuple):
    """All that is planned for one call."""

    fault: Fault
    before: list[Callable[[], object]]
    after: list[Callable[[], object]]
    first: list[_Late]
    then: list[_Late]


class Faults:
    """The plan of faults over a store: what `FaultyStore` and `AsyncFaultyStore` have in common.

    Calls are counted from the moment of planning, so that a test plans each step when it comes to it.
    """

    def __init__(self, store: Store | AsyncStore, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Wrap `store`, without any fault yet; `sleep` lets time pass."""
        self.store = store
        """The store below, which has no faults."""
        self.calls: Counter[str] = Counter()
        """How often each verb was called; ``calls.clear()`` begins anew."""
        self.log: list[Request] = []
        """Every call, in order."""
        self._sleep = sleep
        self._number = 0
        self._plans: list[_Plan] = []
        self._late: list[_Late] = []
        self._mutex = RLock()

    @property
    def traits(self) -> Traits:
        """Those of the store."""
        return self.store.traits

    @property
    def late(self) -> list[Request]:
        """The requests that are still under way."""
        return [late.request for late in self._late]

    def on(self, verb: Verb, nth: int | range, fault: Fault) -> None:
        """Plan `fault` for the nth call of `verb` (or "any") from now on, or for a range of calls.

        If several plans meet one call, the latest counts.
        """
        self._plan(verb, nth, fault, "fault")

    def before(self, verb: Verb, nth: int | range, hook: Callable[[], object]) -> None:
        """Call `hook`, and await what it gives, when that request is sent and has not arrived."""
        self._plan(verb, nth, hook, "before")

    def after(self, verb: Verb, nth: int | range, hook: Callable[[], object]) -> None:
        """Call `hook`, and await what it gives, when that request has arrived and is not answered."""
        self._plan(verb, nth, hook, "after")

    def down(self) -> None:
        """Lose every request from now on, until `heal`."""
        self.on("any", range(1, 1_000_000), lose_request)

    @contextmanager
    def unavailable(self, *, sent: bool = True) -> Iterator[None]:
        """Answer no request in this block; with ``sent=False``, none can even be sent, and its caller knows that.

        Nothing waits for an answer: what takes a request timeout at a server fails at once.
        """
        plan = _Plan("any", range(1, 1_000_000), lose_request if sent else unsent, "fault")
        with self._mutex:
            self._plans.append(plan)
        try:
            yield
        finally:
            with self._mutex:
                self._plans = [other for other in self._plans if other is not plan]

    def heal(self) -> None:
        """Forget all plans; what is under way stays under way."""
        with self._mutex:
            self._plans.clear()

    def _plan(
        self,
        verb: Verb,
        nth: int | range,
        what: Fault | Callable[[], object],
        when: Literal["fault", "before", "after"],
    ) -> None:
        numbers = nth if isinstance(nth, range) else range(nth, nth + 1)
        with self._mutex:
            self._plans.append(_Plan(verb, numbers, what, when))

    async def _get(self, key: str) -> Entry | None:
        return await self._call(Request("get", key), lambda: self.store.get(key))

    async def _put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        request = Request("put_if_version", key, version, value, ttl)
        send, again = lambda: self.store.put_if_version(key, value, version, ttl), lambda: self.store.get(key)
        return await self._call(request, send, again)

    async def _invalidate(self, key: str, version: int) -> Entry | None:
        request = Request("invalidate", key, version)
        return await self._call(request, lambda: self.store.invalidate(key, version), lambda: self.store.get(key))

    async def _wait_while(self, key: str, version: int, timeout: float) -> Entry | None:
        request, store = Request("wait_while", key, version, timeout=timeout), cast("WatchingStore", self.store)
        return await self._call(request, lambda: store.wait_while(key, version, timeout), at_once=lambda: None)

    async def _put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        request, store = Request("put_when_absent", key, ABSENT, value, ttl, timeout), cast("QueueingStore", self.store)
        return await self._call(
            request,
            lambda: store.put_when_absent(key, value, ttl, timeout),
            again=lambda: self.store.get(key),
            at_once=lambda: self.store.put_if_version(key, value, ABSENT, ttl),
        )

    async def _put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        request, store = Request("put_many", puts=tuple(puts)), cast("BatchingStore", self.store)
        return await self._call(request, lambda: store.put_many(request.puts))

    async def _invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        request, store = Request("invalidate_many", removals=tuple(removals)), cast("BatchingStore", self.store)
        return await self._call(request, lambda: store.invalidate_many(request.removals))

    async def _call(
        self,
        request: Request,
        send: Callable[[], Awaitable[T | None] | T | None],
        again: Callable[[], Awaitable[T | None] | T | None] | None = None,
        at_once: Callable[[], Awaitable[T | None] | T | None] | None = None,
    ) -> T | None:
        """Make one call: `again` is how its answer is read later, `at_once` how it arrives when there is no wait."""
        call = self._next(request, at_once or send)
        for hook in call.before:
            await done(hook())
        await self._arrive(call.first)
        if at_once is not None and call.fault.wakes != "in time":
            await self._sleep(request.timeout if call.fault.wakes == "never" else 0.0)
            send = at_once
        answer: T | None = None
        for _ in range(call.fault.applied):
            answer = await done(send())
        await self._arrive(call.then)
        for hook in call.after:
            await done(hook())
        if call.fault.error is not None:
            raise call.fault.error()
        return await done(again()) if call.fault.reads_again and again is not None else answer

    def _next(self, request: Request, send: Callable[[], object]) -> _Call:
        """Note a call, and decide all about it in one step, because calls may come from several threads."""
        with self._mutex:
            self._number += 1
            self.log.append(request)
            self.calls[request.verb] += 1
            fault = Fault()
            hooks: dict[str, list[Callable[[], object]]] = {"before": [], "after": []}
            for plan in [plan for plan in self._plans if plan.meets(request.verb)]:
                if isinstance(plan.what, Fault):
                    fault = plan.what
                else:
                    hooks[plan.when].append(plan.what)
            first = self._take(lambda late: late.before == self._number)
            then = self._take(lambda late: late.after == self._number)
            if fault.kept:
                before, after = (None if k is None else self._number + k for k in (fault.before, fault.after))
                self._late.append(_Late(request, send, before, after))
            return _Call(fault, hooks["before"], hooks["after"], first, then)

    def _take(self, due: Callable[[_Late], bool]) -> list[_Late]:
        taken = [late for late in self._late if due(late)]
        self._late = [late for late in self._late if not due(late)]
        return taken

    async def _deliver(self) -> int:
        """Let every late request arrive now, in order; returns how many there were."""
        with self._mutex:
            late = self._take(lambda _: True)
        await self._arrive(late)
        return len(late)

    async def _arrive(self, overdue: list[_Late]) -> None:
        for late in overdue:
            with suppress(StoreError):  # nobody waits for its answer any more
                await done(late.send())


class FaultyStore(Faults):
    """A `Store` over a store, with planned faults.  The optional verbs are there if the store has them."""

    wait_while: Callable[[str, int, float], Entry | None]
    put_when_absent: Callable[[str, bytes, float, float], Entry | None]
    put_many: Callable[[Sequence[Put]], Sequence[Entry | None] | None]
    invalidate_many: Callable[[Sequence[Removal]], Sequence[Entry | None] | None]
    close: Callable[[], None]

    def __init__(self, store: Store, *, plain: bool = False) -> None:
        """Wrap `store`, without any fault yet; `plain` offers its three verbs only."""
        super().__init__(store, _block)
        if (close := getattr(store, "close", None)) is not None:
            self.close = close
        if plain:
            return
        if hasattr(store, "wait_while"):
            self.wait_while = lambda *arguments: run(self._wait_while(*arguments))
        if hasattr(store, "put_when_absent"):
            self.put_when_absent = lambda *arguments: run(self._put_when_absent(*arguments))
        if hasattr(store, "put_many"):
            self.put_many = lambda puts: run(self._put_many(puts))
            self.invalidate_many = lambda removals: run(self._invalidate_many(removals))

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return run(self._get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return run(self._put_if_version(key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return run(self._invalidate(key, version))

    def deliver(self) -> int:
        """Let every late request arrive now, in order; returns how many there were."""
        return run(self._deliver())


class AsyncFaultyStore(Faults):
    """An `AsyncStore` over a store, with planned faults.  The optional verbs are there if the store has them."""

    wait_while: Callable[[str, int, float], Awaitable[Entry | None]]
    put_when_absent: Callable[[str, bytes, float, float], Awaitable[Entry | None]]
    put_many: Callable[[Sequence[Put]], Awaitable[Sequence[Entry | None] | None]]
    invalidate_many: Callable[[Sequence[Removal]], Awaitable[Sequence[Entry | None] | None]]
    aclose: Callable[[], Awaitable[None]]

    def __init__(self, store: AsyncStore, *, plain: bool = False) -> None:
        """Wrap `store`, without any fault yet; `plain` offers its three verbs only."""
        super().__init__(store, asyncio.sleep)
        if (aclose := getattr(store, "aclose", None)) is not None:
            self.aclose = aclose
        if plain:
            return
        if hasattr(store, "wait_while"):
            self.wait_while = self._wait_while
        if hasattr(store, "put_when_absent"):
            self.put_when_absent = self._put_when_absent
        if hasattr(store, "put_many"):
            self.put_many, self.invalidate_many = self._put_many, self._invalidate_many

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return await self._get(key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return await self._put_if_version(key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return await self._invalidate(key, version)

    async def deliver(self) -> int:
        """Let every late request arrive now, in order; returns how many there were."""
        return await self._deliver()


async def _block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the coroutines of a store that blocks do block
