"""The law of this file: a request is lost, late, doubled or cut off where the test has planned it, and nowhere else.

``faulty = FaultyStore(store)``, then ``faulty.on("put_if_version", 1, lose_reply)``: the next put is applied and gets
no answer.  A late request is not lost: it arrives when the test says ``faulty.deliver()``, or right before or after a
later call, as ``late(before=2)`` has it.  ``faulty.before("get", 1, hook)`` lets another client move there.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT
from caslock.testing.drive import done
from caslock.thread_world import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caslock.store import AsyncStore, Entry, Store, Traits

Verb = Literal["get", "put_if_version", "invalidate", "any"]


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

    def __str__(self) -> str:
        """Say what happens."""
        words = [("not applied", "applied")[self.applied] if self.applied < _TWICE else f"applied {self.applied} times"]
        words.append("not answered" if self.error else "answered")
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

    verb: Literal["get", "put_if_version", "invalidate"]
    key: str
    version: int = ABSENT
    value: bytes = b""
    ttl: float = 0.0

    def send(self, store: Store | AsyncStore) -> Entry | Awaitable[Entry | None] | None:
        """Call the verb of `store`."""
        if self.verb == "get":
            return store.get(self.key)
        if self.verb == "invalidate":
            return store.invalidate(self.key, self.version)
        return store.put_if_version(self.key, self.value, self.version, self.ttl)


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
    before: int | None  # number of the call
    after: int | None


@dataclass
class _Orders:
    """All that is planned for one call."""

    number: int
    fault: Fault = Fault()  # noqa: RUF009 - an immutable tuple
    first: list[Request] = field(default_factory=list)
    then: list[Request] = field(default_factory=list)
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

    async def _call(self, request: Request) -> Entry | None:
        orders = self._orders(request)
        for hook in orders.before:
            await done(hook())
        for overdue in orders.first:
            await self._arrive(overdue)
        answer: Entry | None = None
        for _ in range(orders.fault.applied):
            answer = await self._apply(request)
        for overdue in orders.then:
            await self._arrive(overdue)
        for hook in orders.after:
            await done(hook())
        if orders.fault.error is not None:
            raise orders.fault.error()
        if orders.fault.reads_again:
            return await self._apply(Request("get", request.key))
        return answer

    def _orders(self, request: Request) -> _Orders:
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
                self._late.append(_Late(request, before, after))
            return orders

    def _due(self, now: Callable[[_Late], bool]) -> list[Request]:
        due = [late for late in self._late if now(late)]
        self._late = [late for late in self._late if not now(late)]
        return [late.request for late in due]

    async def _deliver(self) -> int:
        with self._mutex:
            due = self._due(lambda _: True)
        for overdue in due:
            await self._arrive(overdue)
        return len(due)

    async def _arrive(self, request: Request) -> None:
        with suppress(StoreError):  # nobody waits for its answer any more
            await self._apply(request)

    async def _apply(self, request: Request) -> Entry | None:
        return await done(request.send(self.store))


class FaultyStore(Faults):
    """A `Store` over a store, with planned faults."""

    def __init__(self, store: Store) -> None:
        """Wrap `store`, without any fault yet."""
        super().__init__(store)

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return run(self._call(Request("get", key)))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return run(self._call(Request("put_if_version", key, version, value, ttl)))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return run(self._call(Request("invalidate", key, version)))

    def deliver(self) -> int:
        """Let every late request arrive now, in order; returns how many there were."""
        return run(self._deliver())


class AsyncFaultyStore(Faults):
    """An `AsyncStore` over a store, with planned faults."""

    def __init__(self, store: AsyncStore) -> None:
        """Wrap `store`, without any fault yet."""
        super().__init__(store)

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return await self._call(Request("get", key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return await self._call(Request("put_if_version", key, version, value, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return await self._call(Request("invalidate", key, version))

    async def deliver(self) -> int:
        """Let every late request arrive now, in order; returns how many there were."""
        return await self._deliver()
