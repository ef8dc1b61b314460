"""Virtual time, and a store of one key that serves one request after another; it queues its waiters, or wakes all.

A request takes half a round trip, waits until the store has served the requests before it, is served, and its answer
takes the other half.  What the clients compute takes no time.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar

from caslock.local.shared import Shared
from caslock.protocol.sightings import Sightings
from caslock.store import ABSENT, WOKEN, Entry, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from caslock.protocol.attempt import Attempt

    Resume = Callable[[object], None]
    Park: TypeAlias = Callable[[Resume], None]

Waits: TypeAlias = Literal["polled", "queued", "watching"]

T = TypeVar("T")

ROUND_TRIP: Final = 0.0002
SERVICE: Final = 0.00001  # seconds of the store for one request


class Timeline:
    """Virtual time, and whose turn it is."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.current: object = None
        self._moments: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._moments, (max(moment, self.now), next(self._numbers), act))

    def start(self, coroutine: Coroutine[object, object, object]) -> None:
        self.at(self.now, partial(self._step, object(), coroutine, None))

    def run(self, most: int) -> bool:
        """Let time pass until nothing happens any more; whether that took `most` steps at the most."""
        for _ in range(most):
            if not self._moments:
                return True
            self.now, _, act = heapq.heappop(self._moments)
            act()
        return not self._moments

    def _step(self, me: object, coroutine: Coroutine[object, object, object], answer: object) -> None:
        self.current = me
        try:
            park: Park = coroutine.send(answer)  # type: ignore[assignment]  # all that suspends here is a `Suspend`
        except StopIteration:
            return
        park(lambda answer: self.at(self.now, partial(self._step, me, coroutine, answer)))


class Suspend(NamedTuple):
    """What a thread waits for: `park` is given the function that resumes it."""

    park: Park

    def __await__(self) -> Generator[object, object, object]:
        return (yield self.park)


class Server:
    """One key of one store, with a queue of waiters."""

    def __init__(self, timeline: Timeline) -> None:
        self.requests = 0
        self._timeline = timeline
        self._entry: Entry | None = None
        self._ends = 0.0
        self._versions = count(1)
        self._busy_until = 0.0
        self._line: OrderedDict[object, Callable[[], None]] = OrderedDict()
        self._watchers: list[Callable[[], None]] = []

    async def ask(self, apply: Callable[[], object]) -> object:
        answer = await Suspend(partial(self._travel, apply))
        await pause(self._timeline, ROUND_TRIP / 2)
        return answer

    def _travel(self, apply: Callable[[], object], resume: Resume) -> None:
        self.requests += 1
        arrives = self._timeline.now + ROUND_TRIP / 2
        self._timeline.at(arrives, lambda: self._serve(lambda: resume(apply())))

    def _serve(self, act: Callable[[], None]) -> None:
        self._busy_until = max(self._busy_until, self._timeline.now) + SERVICE
        self._timeline.at(self._busy_until, act)

    def observed(self) -> Entry | None:
        if self._entry is not None and self._ends <= self._timeline.now:
            self._entry = None
        return self._entry

    def put(self, value: bytes, version: int, ttl: float) -> Entry | None:
        entry = self.observed()
        if version == (entry.version if entry else ABSENT):
            self._entry, self._ends = Entry(value, next(self._versions)), self._timeline.now + ttl
            self._wake_watchers()
        return self._entry

    def invalidate(self, version: int) -> Entry | None:
        """See `caslock.store.Store.invalidate`; it wakes the first waiter."""
        entry = self.observed()
        if entry is None or entry.version != version:
            return entry
        self._entry = None
        self._wake_watchers()
        if not self._line:
            return None
        _, go = self._line.popitem(last=False)
        go()  # what wakes it also writes for it, before anybody else's request is served
        return WOKEN

    async def wait_while(self, version: int, timeout: float) -> None:
        await Suspend(partial(self._watch, version, timeout))
        await pause(self._timeline, ROUND_TRIP / 2)

    def _watch(self, version: int, timeout: float, resume: Resume) -> None:
        self.requests += 1
        waiting = [resume]

        def wake() -> None:
            while waiting:
                waiting.pop()(None)

        def arrive() -> None:
            entry = self.observed()
            if entry is None or entry.version != version:
                wake()
            else:
                self._watchers.append(wake)
                self._timeline.at(self._timeline.now + timeout, wake)

        self._timeline.at(self._timeline.now + ROUND_TRIP / 2, lambda: self._serve(arrive))

    def _wake_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for wake in watchers:
            wake()

    async def put_when_absent(self, value: bytes, ttl: float, timeout: float) -> object:
        answer = await Suspend(partial(self._line_up, partial(self.put, value, ABSENT, ttl), timeout))
        await pause(self._timeline, ROUND_TRIP / 2)
        return answer

    def _line_up(self, put: Callable[[], Entry | None], timeout: float, resume: Resume) -> None:
        self.requests += 1
        me = object()

        def go() -> None:
            resume(put())

        def arrive() -> None:
            if self.observed() is None:
                go()
                return
            self._line[me] = go
            self._timeline.at(self._timeline.now + timeout, leave)

        def leave() -> None:
            if self._line.pop(me, None) is not None:
                go()

        self._timeline.at(self._timeline.now + ROUND_TRIP / 2, lambda: self._serve(arrive))


async def pause(timeline: Timeline, seconds: float) -> None:
    moment = timeline.now + seconds
    await Suspend(lambda resume: timeline.at(moment, lambda: resume(None)))


class Process:
    """One process as the protocol sees it: a `Runtime` for all its threads."""

    def __init__(self, timeline: Timeline, server: Server, waits: Waits, distance: float = 0.0) -> None:
        """Connect to a store whose clients wait like that; each message takes `distance` seconds longer."""
        self._timeline = timeline
        self._server = server
        self._distance = distance
        self.store = self.home = self.renewing = self
        self.shared = Shared(self)
        self.quarantines = Sightings()
        self.queueing = self if waits == "queued" else None
        self.watching = self if waits == "watching" else None
        self.batching = None
        self.traits = Traits("virtual://")

    async def get(self, key: str) -> Entry | None:
        del key
        return _entry(await self._ask(self._server.observed))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        del key
        return _entry(await self._ask(partial(self._server.put, value, version, ttl)))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        del key
        return _entry(await self._ask(partial(self._server.invalidate, version)))

    async def _ask(self, apply: Callable[[], object]) -> object:
        await pause(self._timeline, self._distance)
        answer = await self._server.ask(apply)
        await pause(self._timeline, self._distance)
        return answer

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        del key
        await pause(self._timeline, self._distance)
        await self._server.wait_while(version, timeout)
        await pause(self._timeline, self._distance)

    def in_background(self, settle: Callable[[float], object], seconds: float) -> None:
        """Nothing is left for later by a server that always answers."""
        raise AssertionError(settle, seconds)

    def per_loop(self, make: Callable[[], T]) -> Callable[[], T]:
        return make

    def start(self, work: Callable[[], object]) -> None:
        """Nothing runs beside an acquire or a release of one key."""
        raise AssertionError(work)

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        del key
        return _entry(await self._server.put_when_absent(value, ttl, timeout))

    @property
    def patience(self) -> float:
        return self.traits.request_timeout

    def now(self) -> float:
        return self._timeline.now

    async def sleep(self, seconds: float) -> None:
        await pause(self._timeline, seconds)

    def me(self) -> object:
        return self._timeline.current

    def mutex(self) -> Mutex:
        """Nobody else wants it: no lease lasts until it is renewed."""
        return Mutex()

    def event(self) -> Event:
        return Event(self._timeline)

    def ended(self, attempt: Attempt) -> bool:
        del attempt
        return False

    def watch(self, attempt: Attempt) -> None:
        """No lease lasts until it is renewed."""

    def report_loss(self, attempt: Attempt) -> None:
        """See `watch`."""


class Mutex:
    """A mutex that is always free."""

    def acquire(self, *, blocking: Literal[False]) -> bool:
        del blocking
        return True

    def release(self) -> None:
        """Give it back."""

    async def __aenter__(self) -> None:
        """Take it."""

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""


class Event:
    """Something that one thread waits for."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._is_set = False
        self._resume: Resume | None = None

    async def wait(self, timeout: float | None) -> None:
        """Return when it has been set since the last wait, or after `timeout` seconds."""
        if not self._is_set:
            await Suspend(partial(self._park, timeout))
        self._is_set = False

    def _park(self, timeout: float | None, resume: Resume) -> None:
        self._resume = resume
        if timeout is not None and timeout != float("inf"):
            self._timeline.at(self._timeline.now + timeout, lambda: self._wake(resume))

    def _wake(self, resume: Resume) -> None:
        if self._resume is resume:  # and not woken already
            self._resume = None
            resume(None)

    def set(self) -> None:
        self._is_set = True
        if self._resume is not None:
            self._wake(self._resume)


def _entry(answer: object) -> Entry | None:
    return answer if isinstance(answer, Entry) else None
