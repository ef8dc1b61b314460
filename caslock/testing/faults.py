"""The law of this file: a request is lost, late, doubled or cut off where the test has planned it, and nowhere else.

``faulty = FaultyStore(store)``, then ``faulty.on("put_if_version", 1, lose_reply)``: the next put is applied and gets
no answer.  A late request is not lost: it arrives when the test says ``faulty.deliver()``, or right before or after a
later call, as ``late(before=2)`` has it.  ``faulty.before("get", 1, hook)`` lets another client move there.

What a store can do beyond the three verbs, its faulty one can too: `put_when_free`, `put_many` and `invalidate_many`
are there if, and only if, the store has them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT
from caslock.testing.drive import done
from caslock.thread_world import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from caslock.store import AsyncStore, BatchingStore, Entry, Put, Removal, Store, Traits, WakingStore

T = TypeVar("T")

Verb: TypeAlias = Literal["get", "put_if_version", "invalidate", "put_when_free", "put_many", "invalidate_many", "any"]

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
    """Whether the answer is read by a second request, as a store does that can't tell a loser at once who stands."""
    wakes: Literal["in time", "early", "never"] = "in time"
    """When a `put_when_free` waits no longer and puts; never: at its timeout."""

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
"""It is applied, and its answer tells what stands only a moment later (an ``after`` hook comes between)."""

lose_wake_up: Final = Fault(wakes="never")
"""For `put_when_free`: nothing wakes it before its timeout."""

wake_early: Final = Fault(wakes="early")
"""For `put_when_free`: it waits for nothing, and puts at once."""


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

    verb: Literal["get", "put_if_version", "invalidate", "put_when_free", "put_many", "invalidate_many"]
    key: str = ""
    version: int = ABSENT
    value: bytes = b""
    ttl: float = 0.0
    timeout: float = 0.0
    puts: tuple[Put, ...] = ()
    removals: tuple[Removal, ...] = ()


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


@dataclass
class _Orders:
    """All that is planned for one call."""

    number: int
    fault: Fault = Fault()  # noqa: RUF009 - an immutable tuple
    first: list[_Late] = field(default_factory=list)
    then: list[_Late] = field(default_factory=list)
    before: list[Callable[[], object]] = field(default_factory=list)
    after: list[Callable[[], object]] = field(default_factory=list)


class Faults:
    """The plan of faults over a store: what `FaultyStore` and `AsyncFaultyStore` have in common.

    Numbers of calls count from the moment of planning, so that a test plans each step when it comes to it.
    """

    def __init__(self, store: Store | AsyncStore) -> None:
        """Wrap `store`, without any fault yet."""
        self.store = store
        self.calls: Counter[str] = Counter()
        """How often each verb was called; ``calls.clear()`` begins anew."""
        self.log: list[Request] = []
        """Every call, in order."""
        self._plans: list[_Plan] = []
        self._late: list[_Late] = []
        self._mutex = threading.Lock()

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

        Where several plans meet one call, the latest counts.
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

    async def _put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        request, store = Request("put_when_free", key, ABSENT, value, ttl, timeout), cast("WakingStore", self.store)
        return await self._call(
            request,
            lambda: store.put_when_free(key, value, ttl, timeout),
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
        orders = self._orders(request, at_once or send)
        for hook in orders.before:
            await done(hook())
        await self._arrive(orders.first)
        if at_once is not None and orders.fault.wakes != "in time":
            await self._sleep(request.timeout if orders.fault.wakes == "never" else 0.0)
            send = at_once
        answer: T | None = None
        for _ in range(orders.fault.applied):
            answer = await done(send())
        await self._arrive(orders.then)
        for hook in orders.after:
            await done(hook())
        if orders.fault.error is not None:
            raise orders.fault.error()
        return await done(again()) if orders.fault.reads_again and again is not None else answer

    def _orders(self, request: Request, send: Callable[[], object]) -> _Orders:
        """Decide all about one call at once: calls may come from several threads."""
        with self._mutex:
            self.log.append(request)
            self.calls[request.verb] += 1
            orders = _Orders(number=len(self.log))
            for plan in self._plans:
                if not plan.meets(request.verb):
                    continue
                if isinstance(plan.what, Fault):
                    orders.fault = plan.what
                else:
                    (orders.before if plan.when == "before" else orders.after).append(plan.what)
            orders.first = self._due(lambda late: late.before == orders.number)
            orders.then = self._due(lambda late: late.after == orders.number)
            fault = orders.fault
            if fault.kept:
                before, after = (None if k is None else orders.number + k for k in (fault.before, fault.after))
                self._late.append(_Late(request, send, before, after))
            return orders

    def _due(self, now: Callable[[_Late], bool]) -> list[_Late]:
        due = [late for late in self._late if now(late)]
        self._late = [late for late in self._late if not now(late)]
        return due

    async def _deliver(self) -> int:
        with self._mutex:
            due = self._due(lambda _: True)
        await self._arrive(due)
        return len(due)

    async def _arrive(self, overdue: list[_Late]) -> None:
        for late in overdue:
            with suppress(StoreError):  # nobody waits for its answer any more
                await done(late.send())

    async def _sleep(self, seconds: float) -> None:
        """Let time pass, as the API of the subclass does."""
        raise NotImplementedError  # this class is what two others have in common, and no store by itself


class FaultyStore(Faults):
    """A `Store` over a store, with planned faults."""

    put_when_free: Callable[[str, bytes, float, float], Entry | None]
    """See `WakingStore.put_when_free`; it is there if the store has it."""
    put_many: Callable[[Sequence[Put]], Sequence[Entry | None] | None]
    """See `BatchingStore.put_many`; it is there if the store has it."""
    invalidate_many: Callable[[Sequence[Removal]], Sequence[Entry | None] | None]
    """See `BatchingStore.invalidate_many`; it is there if the store has it."""

    def __init__(self, store: Store, *, plain: bool = False) -> None:
        """Wrap `store`, without any fault yet; `plain` offers its three verbs only."""
        super().__init__(store)
        if plain:
            return
        if hasattr(store, "put_when_free"):
            self.put_when_free = lambda *arguments: run(self._put_when_free(*arguments))
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

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - these coroutines block by design


class AsyncFaultyStore(Faults):
    """An `AsyncStore` over a store, with planned faults."""

    put_when_free: Callable[[str, bytes, float, float], Awaitable[Entry | None]]
    """See `WakingStore.put_when_free`; it is there if the store has it."""
    put_many: Callable[[Sequence[Put]], Awaitable[Sequence[Entry | None] | None]]
    """See `BatchingStore.put_many`; it is there if the store has it."""
    invalidate_many: Callable[[Sequence[Removal]], Awaitable[Sequence[Entry | None] | None]]
    """See `BatchingStore.invalidate_many`; it is there if the store has it."""

    def __init__(self, store: AsyncStore, *, plain: bool = False) -> None:
        """Wrap `store`, without any fault yet; `plain` offers its three verbs only."""
        super().__init__(store)
        if plain:
            return
        if hasattr(store, "put_when_free"):
            self.put_when_free = self._put_when_free
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

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
