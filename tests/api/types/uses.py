"""What mypy says of programs that use caslock.

A wrong line has the error that mypy must report as its `type: ignore`; mypy reports one that ignores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import assert_type

import redis
import redis.asyncio
from pymemcache.client.base import Client, PooledClient

import caslock
from caslock import AsyncHold, AsyncLock, AsyncStore, Hold, Lock, Store
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.stores.redis import AsyncRedisStore, RedisStore
from caslock.stores.sqlite import SQLiteStore
from caslock.stores.tair import AsyncTairStore, TairStore
from tests.support.watching import AsyncWatchingMemory, WatchingMemory


def told(hold: Hold) -> None:
    """Hear of the loss of a blocking hold."""
    print(hold.key)  # noqa: T201 - as a user may


def told_of_either(hold: Hold | AsyncHold) -> None:
    """Hear of the loss of either kind."""
    print(hold.key)  # noqa: T201 - as a user may


async def what_connect_gives_can_be_closed() -> None:
    """By hand, as in the lifespan of FastAPI, and by a block."""
    store = caslock.connect_async("redis://localhost:6379/0", prefix="locks:", replicas=1)
    await store.aclose()
    async with caslock.connect_async("redis://localhost:6379/0") as entered:
        caslock.AsyncLock(entered, "k")
    with caslock.connect("sqlite:///locks.db") as blocking, caslock.Lock(blocking, "k"):
        blocking.close()


def a_lock_at_several_stores(store: Store, async_store: AsyncStore) -> None:
    """A lock at several stores gives the holds of a Lock, and takes neither an owner nor async stores."""
    with caslock.QuorumLock([store] * 3, "k", ttl=3, on_lost=told) as held:
        assert_type(held, caslock.Hold)
    caslock.QuorumLock([async_store] * 3, "k")  # type: ignore[list-item]
    caslock.QuorumLock([store] * 3, "k", owner="me")  # type: ignore[call-arg]
    caslock.QuorumLock(store, "k")  # type: ignore[arg-type]
    caslock.MultiLock([caslock.QuorumLock([store] * 3, "k")])  # type: ignore[list-item]
    caslock.AsyncQuorumLock([store, async_store, store], "k", on_lost=told_of_either)
    caslock.AsyncQuorumLock([async_store] * 3, "k", on_lost=told)  # type: ignore[arg-type]


def a_lock(store: Store, async_store: AsyncStore) -> None:
    """A blocking lock takes blocking stores only, and a callback that takes its holds."""
    lock = caslock.Lock(store, "k", ttl=3, timeout=None, on_lost=told)
    caslock.Lock(store, "k", on_lost=told_of_either)
    caslock.Lock(store, "k", on_lost=lambda hold: assert_type(hold, caslock.Hold))
    caslock.Lock(async_store, "k")  # type: ignore[arg-type]
    caslock.AsyncLock(async_store, "k", on_lost=told)  # type: ignore[arg-type]
    caslock.AsyncLock(store, "k", on_lost=told_of_either)
    assert_type(lock.acquire(), caslock.Hold | None)
    if hold := lock.acquire(timeout=0):
        with hold as held:
            assert_type(held, caslock.Hold)
            assert_type(held.fence, int)
            held.extend(5)
    lock.acquire().release()  # type: ignore[union-attr]
    lock.acquire(10)  # type: ignore[arg-type]
    lock.acquire(blocking_timeout=1)  # type: ignore[call-arg]
    lock.owned()  # type: ignore[attr-defined]
    caslock.Lock(store, "k", tll=3)  # type: ignore[call-arg]
    with lock as held:
        assert_type(held, caslock.Hold)
        assert_type(held.release(), None)
        held.released()  # type: ignore[attr-defined]
    record = lock.holder()
    assert_type(record, caslock.Record | None)
    if record is not None:
        assert_type(record.since, datetime | None)
        assert_type(record.fence, int | None)


def an_adoption(store: Store, async_store: AsyncStore) -> None:
    """An adoption has the settings of a lock, and a callback that takes its holds."""
    caslock.Lock.adopt(store, "ticket", ttl=3, on_lost=lambda hold: hold.release())
    caslock.AsyncLock.adopt(async_store, "ticket", max_hold=None, on_lost=lambda hold: hold.key).close()


async def blocks(lock: Lock, hold: Hold, async_lock: AsyncLock, async_hold: AsyncHold) -> None:
    """Each kind of lock has its own kind of block."""
    async with async_lock, async_hold:
        pass
    async with lock:  # type: ignore[attr-defined]
        pass
    async with hold:  # type: ignore[attr-defined]
        pass
    with async_lock:  # type: ignore[attr-defined]
        pass
    with async_hold:  # type: ignore[attr-defined]
        pass


def functions(store: Store, async_store: AsyncStore) -> None:
    """A function keeps its arguments when it is decorated; what it returns if the key is busy joins its result."""

    @caslock.locked(store, "pay:{number}:{user}", timeout=5, ttl=3, min_hold=1)
    def pay(number: int, *, user: str = "") -> bool:
        return bool(number and user)

    @caslock.locked(lambda: store, "pay:{number}", busy="skip")
    def pay_or_skip(number: int) -> bool:
        return bool(number)

    @caslock.locked(async_store, "pay:{number}")
    async def pay_on(number: int) -> bool:
        return bool(number)

    @caslock.locked(store, "pay:{number}", busy="skip")
    async def pay_on_or_skip(number: int) -> bool:
        return bool(number)

    @caslock.locked(async_store, "pay:{number}", busy=len)
    async def pay_on_or_count(number: str) -> bool:
        return bool(number)

    assert_type(pay(1, user="ada"), bool)
    assert_type(pay_or_skip(1), bool | None)
    pay("1")  # type: ignore[arg-type]
    pay(1, "ada")  # type: ignore[call-arg]
    pay_or_skip()  # type: ignore[call-arg]
    caslock.locked(store, "k", tll=3)  # type: ignore[call-overload]
    caslock.locked(store, "k", busy="skp")  # type: ignore[call-overload]
    caslock.locked(store, "k", busy=None)  # type: ignore[call-overload]
    caslock.locked(5, "k")  # type: ignore[call-overload]
    assert_type(caslock.key("room", 42, None), str)
    caslock.key(1.5)  # type: ignore[arg-type]

    assert_type(caslock.current_hold(), caslock.Hold | caslock.AsyncHold)
    assert_type(caslock.current_hold(caslock.SemaphoreHold).slot, int)
    caslock.current_hold(int)  # type: ignore[type-var]

    async def scene() -> None:
        assert_type(caslock.current_hold(caslock.AsyncHold), caslock.AsyncHold)
        await caslock.current_hold(caslock.AsyncHold).extend(5)
        assert_type(await pay_on(1), bool)
        assert_type(await pay_on_or_skip(1), bool | None)
        assert_type(await pay_on_or_count("x"), bool | int)

    del scene


def stores() -> None:
    """A store is made of a URL or a client, and of nothing else; pymemcache, which has no types, opens no gap."""
    caslock.connect("redis://localhost")
    caslock.connect(redis.Redis())
    caslock.connect(Client("localhost"))
    caslock.connect_async(PooledClient("localhost"))
    caslock.connect_async(redis.asyncio.Redis())
    caslock.connect(5)  # type: ignore[arg-type]
    caslock.connect(None)  # type: ignore[arg-type]
    caslock.connect(redis.asyncio.Redis())  # type: ignore[arg-type]
    caslock.connect_async(5)  # type: ignore[arg-type]


def abilities() -> None:
    """The stores of caslock have the optional abilities that they say they have, and a store without one is refused."""
    memory, async_memory = MemoryStore(), AsyncMemoryStore()
    redis_store, async_redis = RedisStore.from_url("redis://h"), AsyncRedisStore.from_url("redis://h")
    queueing: list[caslock.QueueingStore] = [memory, redis_store]
    async_queueing: list[caslock.AsyncQueueingStore] = [async_memory, async_redis]
    batching: list[caslock.BatchingStore] = [memory, redis_store, SQLiteStore("f")]
    async_batching: list[caslock.AsyncBatchingStore] = [async_memory, async_redis]
    listing: list[caslock.ListingStore] = [memory, redis_store, SQLiteStore("f")]
    async_listing: list[caslock.AsyncListingStore] = [async_memory, async_redis]
    identified: list[caslock.IdentifiedStore] = [redis_store, SQLiteStore("f"), MemcachedStore(Client("h"))]
    closable: list[caslock.ClosableStore] = [memory, redis_store, SQLiteStore("f"), MemcachedStore(Client("h"))]
    tair, async_tair = TairStore.from_url("tair://h"), AsyncTairStore.from_url("tair://h")
    closable.append(tair)
    async_closable: list[caslock.AsyncClosableStore] = [async_memory, async_redis, async_tair]
    queueing.append(tair)  # type: ignore[arg-type]
    watching: list[caslock.WatchingStore] = [WatchingMemory()]
    async_watching: list[caslock.AsyncWatchingStore] = [AsyncWatchingMemory()]
    queueing.append(SQLiteStore("f"))  # type: ignore[arg-type]
    watching.append(memory)  # type: ignore[arg-type]
    listing.append(MemcachedStore(Client("h")))  # type: ignore[arg-type]
    del async_queueing, batching, async_batching, async_listing, identified, closable, async_closable, async_watching


def several_locks(store: Store, lock: Lock, async_lock: AsyncLock, keys: Iterator[str]) -> None:
    """A MultiLock takes a store with its keys and their settings, or locks, which have their own."""
    caslock.MultiLock(store, ["a", "b"], ttl=3, timeout=5, on_lost=told)
    caslock.MultiLock(store, {"a", "b"})
    caslock.MultiLock(store, keys)
    caslock.MultiLock(store, (f"user:{number}" for number in range(3)))
    caslock.MultiLock([lock, lock], timeout=5)
    caslock.MultiLock(store, "abc")  # type: ignore[call-overload]
    caslock.MultiLock(store)  # type: ignore[call-overload]
    caslock.MultiLock(store, [1])  # type: ignore[list-item]
    caslock.MultiLock(store, ["a"], tll=3)  # type: ignore[call-overload]
    caslock.MultiLock([lock], ttl=3)  # type: ignore[call-overload]
    caslock.MultiLock([async_lock])  # type: ignore[list-item]
    with caslock.MultiLock([lock]) as holds:
        assert_type(holds, caslock.MultiHold)
        assert_type(holds["a"], caslock.Hold)
        assert_type(holds.fences, dict[str, int])
    assert_type(caslock.MultiLock([lock]).acquire(), caslock.MultiHold | None)


async def several_async_locks(store: AsyncStore, blocking_store: Store, lock: AsyncLock) -> None:
    """The same for asyncio, where a blocking store serves too."""
    caslock.AsyncMultiLock(blocking_store, ["a", "b"], ttl=3, on_lost=told_of_either)
    caslock.AsyncMultiLock(store, "abc")  # type: ignore[call-overload]
    caslock.AsyncMultiLock(store)  # type: ignore[call-overload]
    caslock.AsyncMultiLock(store, ["a"], on_lost=told)  # type: ignore[arg-type]
    caslock.AsyncMultiLock([lock], ttl=3)  # type: ignore[call-overload]
    async with caslock.AsyncMultiLock([lock]) as holds:
        assert_type(holds, caslock.AsyncMultiHold)
    assert_type(await caslock.AsyncMultiLock([lock]).acquire(), caslock.AsyncMultiHold | None)
    assert_type(await lock.acquire(timeout=-1), caslock.AsyncHold | None)
    if hold := await lock.acquire(timeout=0):
        async with hold as held:
            assert_type(held, caslock.AsyncHold)
    async with lock as held:
        await held.extend(5)
        held.release()  # type: ignore[unused-coroutine]
