"""A scenario is written once, and each API runs it in its own way: with threads, or with tasks."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar, Unpack, cast

from caslock.aio import AsyncHold, AsyncLock, AsyncMultiHold, AsyncMultiLock
from caslock.blocking import Hold, Lock, MultiHold, MultiLock
from caslock.local.lock import Settings
from caslock.local.workers import run
from caslock.protocol.record import Record, decode
from caslock.store import AsyncStore, Store, Traits
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.drive import done, is_async, on_loop
from caslock.testing.faults import AsyncFaultyStore, FaultyStore

T = TypeVar("T")
C = TypeVar("C")

TTL: Final = 30.0
"""Seconds of a lease that no test outlives."""

LONG: Final = 25.0
"""Seconds in which happens what must happen."""

AnyLock: TypeAlias = Lock | AsyncLock
AnyMultiLock: TypeAlias = MultiLock | AsyncMultiLock
AnyHold: TypeAlias = Hold | AsyncHold
AnyMultiHold: TypeAlias = MultiHold | AsyncMultiHold
AnyFaultyStore: TypeAlias = FaultyStore | AsyncFaultyStore

WIDTH: Final = 32
"""How many cases are played at the same time, where a scenario has many."""


class _FaultyStore(FaultyStore):
    @property
    def traits(self) -> Traits:
        return super().traits._replace(request_timeout=TTL)


class _AsyncFaultyStore(AsyncFaultyStore):
    @property
    def traits(self) -> Traits:
        return super().traits._replace(request_timeout=TTL)


class Blocking:
    """Threads, and calls that block: a coroutine of a scenario never suspends."""

    interruption: type[BaseException] = KeyboardInterrupt
    """What interrupts a call."""

    def run(self, scenario: Coroutine[object, object, None]) -> None:
        run(scenario)

    def lock(self, store: Store | AsyncStore, key: str, **settings: Unpack[Settings[AnyHold]]) -> AnyLock:
        return Lock(cast("Store", store), key, **settings)

    def multi(
        self, store: Store | AsyncStore, keys: Sequence[str], **settings: Unpack[Settings[AnyHold]]
    ) -> AnyMultiLock:
        return MultiLock(cast("Store", store), keys, **settings)

    def hook(self, act: Callable[[], Coroutine[object, object, object]]) -> Callable[[], object]:
        """Make what a faulty store can call between two requests."""
        return lambda: run(act())

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the thread is ours

    async def together(self, acts: list[Coroutine[object, object, T]], width: int) -> list[T]:
        """Play several acts at the same time, at most `width` of them at once, each in a thread or task of its own."""
        try:
            with ThreadPoolExecutor(min(width, len(acts))) as threads:
                return list(threads.map(run, acts))
        finally:
            for act in acts:
                act.close()  # after a failure, those that have not begun

    async def elsewhere(self, act: Coroutine[object, object, T], name: str) -> T:
        """Play an act in a new thread or task of that name, to its end."""
        outcome: Future[T] = Future()

        def play() -> None:
            try:
                outcome.set_result(run(act))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                outcome.set_exception(error)

        threading.Thread(target=play, name=name).start()
        return outcome.result()


class Asyncio:
    """Tasks on the one loop of these tests: over an `AsyncStore`, or over a `Store` through worker threads."""

    interruption: type[BaseException] = asyncio.CancelledError

    def run(self, scenario: Coroutine[object, object, None]) -> None:
        on_loop(scenario)

    def lock(self, store: Store | AsyncStore, key: str, **settings: Unpack[Settings[AnyHold]]) -> AnyLock:
        return AsyncLock(store, key, **settings)

    def multi(
        self, store: Store | AsyncStore, keys: Sequence[str], **settings: Unpack[Settings[AnyHold]]
    ) -> AnyMultiLock:
        return AsyncMultiLock(store, keys, **settings)

    def hook(self, act: Callable[[], Coroutine[object, object, object]]) -> Callable[[], object]:
        loop = asyncio.get_running_loop()

        def play() -> object:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # a worker thread
                return asyncio.run_coroutine_threadsafe(act(), loop).result()
            return loop.create_task(act())  # a task of its own: another client

        return play

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def together(self, acts: list[Coroutine[object, object, T]], width: int) -> list[T]:
        room = asyncio.Semaphore(width)

        async def one(act: Coroutine[object, object, T]) -> T:
            async with room:
                return await act

        outcomes = await asyncio.gather(*map(one, acts), return_exceptions=True)
        results = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return results

    async def elsewhere(self, act: Coroutine[object, object, T], name: str) -> T:
        return await asyncio.create_task(act, name=name)


Play: TypeAlias = Blocking | Asyncio


class Scene:
    """Two clients of one store, a key that nobody else uses, and the API that they use."""

    def __init__(self, play: Play, store: Store | AsyncStore, another: Store | AsyncStore, key: str) -> None:
        self.play = play
        self.store = store
        self._wrapped = list[AnyFaultyStore]()
        self.another = self._wrap(another) if another is store else another
        self.key = key
        self.traits = store.traits

    def _wrap(self, store: Store | AsyncStore, *, plain: bool = False) -> AnyFaultyStore:
        if is_async(store):
            self._wrapped.append(_AsyncFaultyStore(cast("AsyncStore", store), plain=plain))
        else:
            self._wrapped.append(_FaultyStore(cast("Store", store), plain=plain))
        return self._wrapped[-1]

    def end(self) -> None:
        """Let what is still cleaned up in the background find an empty place, and not open a closed store again."""
        memory = MemoryStore()
        for faulty in self._wrapped:
            faulty.heal()
            faulty.store = AsyncMemoryStore(memory) if isinstance(faulty, AsyncFaultyStore) else memory

    def faulty(self, *, plain: bool = False) -> AnyFaultyStore:
        """One client's store, with faults to be planned; `plain`: without what it can do beyond the three verbs."""
        return self._wrap(self.store, plain=plain)

    def lock(
        self, store: Store | AsyncStore | None = None, key: str | None = None, **settings: Unpack[Settings[AnyHold]]
    ) -> AnyLock:
        """One client's lock, renewed only if asked; without `store`, it acts as in a process of its own."""
        settings.setdefault("auto_renew", False)
        return self.play.lock(self.faulty() if store is None else store, self.key if key is None else key, **settings)

    def rival(self, key: str | None = None, **settings: Unpack[Settings[AnyHold]]) -> AnyLock:
        return self.lock(self._wrap(self.another), key, **settings)

    async def holder(self, key: str | None = None) -> Record | None:
        """Who holds the key, as the store has it."""
        entry = await done(self.store.get(self.key if key is None else key))
        record = None if entry is None else decode(entry.value)
        return None if record is None or record.free else record

    async def vanish(self, key: str | None = None) -> None:
        """Remove what is there, as expiry does: its holder is not notified."""
        key = self.key if key is None else key
        entry = await done(self.another.get(key))
        assert entry is not None
        assert await done(self.another.invalidate(key, entry.version)) is None

    async def until(
        self, happened: Callable[[], Coroutine[object, object, bool]], what: str, within: float | None = None
    ) -> None:
        """Look again and again; None: for `LONG`."""
        within = LONG if within is None else within
        give_up = time.monotonic() + within
        while not await happened():
            assert time.monotonic() < give_up, f"{what}: not within {within:g} s"
            await self.play.sleep(0.005)

    async def until_over(self, hold: AnyHold, ttl: float) -> None:
        """Wait for the end of a lease, as the store sees it; if that ends none, as its holder does."""

        async def over() -> bool:
            return await done(self.store.get(hold.key)) is None if self.traits.expires else hold.lost

        await self.until(over, f"the end of a lease of {ttl:g} s", ttl + self.traits.expiry_lag + LONG)


async def attempt(lock: AnyLock, timeout: float | None = 0) -> AnyHold | None:
    if isinstance(lock, Lock):
        return lock.acquire(timeout=timeout)
    return await lock.acquire(timeout=timeout)


async def attempt_all(lock: AnyMultiLock, timeout: float | None = 0) -> AnyMultiHold | None:
    if isinstance(lock, MultiLock):
        return lock.acquire(timeout=timeout)
    return await lock.acquire(timeout=timeout)


async def take(lock: AnyLock, timeout: float | None = 0) -> AnyHold:
    """Acquire, and check that it has succeeded."""
    hold = await attempt(lock, timeout)
    assert hold is not None, f"{lock} should be free, and is held by {await done(lock.holder())}"
    return hold


@asynccontextmanager
async def inside(lock: AnyLock) -> AsyncIterator[AnyHold]:
    """Enter the block of a `with` or an `async with`."""
    if isinstance(lock, Lock):
        with lock as held:
            yield held
    else:
        async with lock as hold:
            yield hold


def scenario(tell: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """Make a test of a coroutine, which is played by threads or by tasks."""

    @functools.wraps(tell)
    def test(self: object, *, scene: Scene, **given: object) -> None:
        scene.play.run(tell(self, scene=scene, **given))

    return test


async def each(scene: Scene, cases: Iterable[C], act: Callable[[C, str], Coroutine[object, object, None]]) -> None:
    """Play an act once for every case, with a key of its own, several at the same time."""

    async def one(number: int, case: C) -> None:
        try:
            await act(case, f"{scene.key}:{number}")
        except BaseException as error:
            error.add_note(f"in the case of {case}")
            raise

    await scene.play.together([one(number, case) for number, case in enumerate(cases)], WIDTH)
