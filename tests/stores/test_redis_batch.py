"""Several requests as one: `put_many` and `invalidate_many`, and the packets that tasks of one loop share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
import redis
import redis.asyncio

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, WOKEN, Entry, Put, Removal
from caslock.stores.redis import FOREIGN, AsyncRedisStore, RedisStore
from caslock.testing.steps import in_a_thread
from tests.conftest import NewServer
from tests.stores.opening import apis, store_on
from tests.support.locations import present, until
from tests.support.loops import in_a_loop
from tests.support.servers import HOST, Server, free_port

Opened = Any  # a store of either API, whose verbs block

api = apis(RedisStore.from_url, AsyncRedisStore.from_url)
store = store_on("redis_server")


def puts(keys: str, version: int = ABSENT, value: bytes = b"a") -> list[Put]:
    return [Put(key, value + key.encode(), version, 30.0) for key in keys]


def test_many_are_put_and_removed_by_one_command_each(store: Opened, admin: redis.Redis) -> None:
    """Each with its ttl; nothing is left behind."""
    store.invalidate_many([Removal("x", store.put_many(puts("x"))[0].version)])  # both scripts are known from here on
    admin.config_resetstat()
    begun = time.monotonic()
    entries = store.put_many(puts("abc"))
    assert all(30_001 >= admin.pttl(key) > 29_998 - 1000 * (time.monotonic() - begun) for key in "abc")  # pttl first
    removals = [Removal(key, entry.version) for key, entry in zip("abc", entries, strict=True)]
    assert store.invalidate_many(removals) == [None] * 3
    assert admin.info("commandstats")["cmdstat_evalsha"]["calls"] == 2
    assert admin.dbsize() == 0


def test_many_spare_what_another_program_has_written(store: Opened, admin: redis.Redis) -> None:
    """It keeps all from being written, is not removed, and each answer shows it."""
    (held,) = store.put_many(puts("b"))
    admin.set("f", b"foreign")
    foreign = Entry(b"foreign", FOREIGN)
    assert store.put_many(puts("af")) == [None, foreign]
    assert store.invalidate_many([Removal("b", held.version), Removal("f", FOREIGN)]) == [None, foreign]
    assert admin.keys() == [b"f"]


def test_removing_many_wakes_a_waiter(redis_server: Server, store: Opened, admin: redis.Redis) -> None:
    """WOKEN is in the answer for the key that was waited for."""
    a, b = store.put_many(puts("ab"))
    with contextlib.closing(RedisStore.from_url(redis_server.url)) as another:
        waiting = in_a_thread(lambda: another.put_when_absent("b", b"w", 30, 20))
        assert until(lambda: admin.exists(b"b\xffwaiters"))
        assert store.invalidate_many([Removal("a", a.version), Removal("b", b.version)]) == [None, WOKEN]
        assert present(waiting.result(50)).value == b"w"
    assert admin.keys() == [b"b"]


def test_a_key_of_another_type_refuses_all(store: Opened, admin: redis.Redis) -> None:
    """Nothing has changed then."""
    (entry,) = store.put_many(puts("a"))
    admin.lpush("l", "x")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.put_many(puts("bl"))
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.invalidate_many([Removal("a", entry.version), Removal("l", 7)])
    assert set(admin.keys()) == {b"a", b"l"}


def test_bad_arguments_are_refused_and_none_is_nothing(store: Opened) -> None:
    """Before anything is sent."""
    assert store.put_many([]) == []
    assert store.invalidate_many([]) == []
    for bad in (Put("", b"", ABSENT, 1.0), Put("k", bytes(4097), ABSENT, 1.0), Put("k", b"", ABSENT, 0.0)):
        with pytest.raises(ValueError, match="must"):
            store.put_many([Put("other", b"", ABSENT, 1.0), bad])
    with pytest.raises(ValueError, match="distinct"):
        store.put_many([*puts("a"), *puts("a")])
    with pytest.raises(ValueError, match="distinct"):
        store.invalidate_many([Removal("a", 1), Removal("a", 2)])
    assert store.get("other") is None


async def put_and_remove(store: AsyncRedisStore, key: str) -> None:
    entry = present(await store.put_if_version(key, key.encode(), ABSENT, 30))
    assert entry.value == key.encode()
    assert await store.get(key) == entry
    assert await store.invalidate(key, entry.version) is None


@in_a_loop
async def test_a_thousand_tasks_share_one_connection_and_few_packets(new_redis: NewServer) -> None:
    """Each gets its own answers, and the server is sent far fewer packets than requests."""
    server = new_redis()
    store = AsyncRedisStore.from_url(server.url + "?client_name=tasks")
    await put_and_remove(store, "first")
    with redis.Redis.from_url(server.url) as admin:
        before = admin.info("stats")["total_reads_processed"]
        await asyncio.gather(*(put_and_remove(store, f"k{number}") for number in range(1000)))
        assert admin.info("stats")["total_reads_processed"] - before < 300
        assert [each["name"] for each in admin.client_list()].count("tasks") == 1
        assert admin.dbsize() == 0
    await store.aclose()


@pytest.mark.parametrize("replicas", [0, 1])
@in_a_loop
async def test_a_cancelled_caller_disturbs_nobody(new_redis: NewServer, replicas: int) -> None:
    """At whatever step: the others of its packet, those that share its WAIT, and those after it are answered."""
    server = new_redis("--repl-diskless-sync-delay", "0")
    if replicas:
        new_redis("--replicaof", HOST, str(server.port))
        with redis.Redis.from_url(server.url) as admin:
            while not admin.wait(1, 100):  # until the replica has connected
                pass
    store = AsyncRedisStore.from_url(server.url, replicas=replicas)
    for steps in range(12):
        tasks = [asyncio.create_task(put_and_remove(store, f"c{steps}:{number}")) for number in range(20)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        for number, outcome in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
            assert outcome is None or (number % 3 == 0 and isinstance(outcome, asyncio.CancelledError))
    await store.aclose()


@in_a_loop
async def test_a_packet_without_an_answer_fails_for_each_of_its_callers(new_redis: NewServer) -> None:
    """Each gets an error of its own, which says whether its request may have been applied; the next ones succeed."""
    server = new_redis()
    store = AsyncRedisStore.from_url(server.url)
    await asyncio.gather(*(put_and_remove(store, f"k{number}") for number in range(50)))
    store._server.timeout = store._server.patience = 1.0
    server.pause()
    outcomes = await asyncio.gather(
        *(put_and_remove(store, f"k{number}") for number in range(50)), return_exceptions=True
    )
    server.resume()
    store._server.timeout = store._server.patience = 20.0
    assert len({id(outcome) for outcome in outcomes}) == 50
    for outcome in outcomes:
        assert isinstance(outcome, StoreUnavailable)
    first = outcomes[0]  # some of the others may have waited for a further connection
    assert isinstance(first, StoreUnavailable)
    assert first.sent
    tasks = [asyncio.create_task(put_and_remove(store, f"n{number}")) for number in range(50)]
    await asyncio.sleep(0)
    server.restart()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert outcome is None or isinstance(outcome, StoreUnavailable)
    await put_and_remove(store, "afterwards")
    await store.aclose()


@in_a_loop
async def test_one_refusal_in_a_packet_is_one_callers(redis_server: Server, admin: redis.Redis) -> None:
    """So is a script that the server has lost: every request of the packet succeeds all the same."""
    store = AsyncRedisStore.from_url(redis_server.url)
    await put_and_remove(store, "first")
    admin.script_flush()
    admin.lpush("list", "x")
    outcomes = await asyncio.gather(*(put_and_remove(store, key) for key in ("a", "list", "b")), return_exceptions=True)
    assert outcomes[0] is outcomes[2] is None
    assert isinstance(outcomes[1], StoreError)
    assert not isinstance(outcomes[1], StoreUnavailable)
    await store.aclose()


@in_a_loop
async def test_nobody_waits_for_ever_for_a_server_that_is_not_there() -> None:
    """Each of many learns that nothing was sent."""
    store = AsyncRedisStore.from_url(f"redis://{HOST}:{free_port()}")
    outcomes = await asyncio.gather(*(store.get(f"k{number}") for number in range(100)), return_exceptions=True)
    assert len({id(outcome) for outcome in outcomes}) == 100
    for outcome in outcomes:
        assert isinstance(outcome, StoreUnavailable)
        assert not outcome.sent
    await store.aclose()


@in_a_loop
async def test_replicas_acknowledge_a_packet_as_a_whole(new_redis: NewServer) -> None:
    """One WAIT follows it: too few is an error for each."""
    store = AsyncRedisStore.from_url(f"{new_redis().url}?socket_timeout=20", replicas=1)
    store._server.acknowledge = b"WAIT 1 500\r\n"  # 0.5 s instead of 10 s
    outcomes = await asyncio.gather(
        *(put_and_remove(store, f"k{number}") for number in range(20)), return_exceptions=True
    )
    assert all(isinstance(outcome, StoreUnavailable) and "replicas" in str(outcome) for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 20
    await store.aclose()


@in_a_loop
async def test_who_asks_as_the_store_is_closed_is_answered(redis_server: Server) -> None:
    """A request of the turn in which a connection that is being opened is cancelled opens one anew."""
    store = AsyncRedisStore.from_url(redis_server.url)
    first = asyncio.create_task(store.get("nobody's"))
    for _ in range(3):  # a connection is being opened for it
        await asyncio.sleep(0)

    async def close() -> None:
        first.cancel()
        await store.aclose()

    closing, asking = asyncio.create_task(close()), asyncio.create_task(store.get("nobody's"))
    assert await asyncio.wait_for(asking, 20) is None
    await closing
    await store.aclose()
