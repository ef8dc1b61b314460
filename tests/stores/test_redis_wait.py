"""Waiting at a Redis store, through both APIs, against real servers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest
import redis
import redis.asyncio

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, WOKEN, Entry, Put, QueueingStore, Removal, Store, WatchingStore
from caslock.stores.redis import FOREIGN, AsyncRedisStore, RedisStore
from caslock.stores.shared.connections import MOST_WAITING
from caslock.testing.stopwatch import Stopwatch
from tests.conftest import NewServer
from tests.stores.opening import opening, put, unsent
from tests.support.locations import present, until
from tests.support.loops import in_a_loop
from tests.support.servers import HOST, Server, free_port

if TYPE_CHECKING:

    class Queueing(Store, QueueingStore, WatchingStore):
        """A store with `put_when_absent` and `wait_while`."""


T = TypeVar("T")

WAIT_ENDS = 0.1
"""Seconds by which a wait may end late: Redis looks ten times a second."""


New = Any  # starts a private server with options, and gives it with a Waiting


class Waiting:
    def __init__(self, api: str, url: str, stack: contextlib.ExitStack) -> None:
        self.blocking, self.url, self.stack = api == "blocking", url, stack
        self.admin = stack.enter_context(redis.Redis.from_url(url))
        with contextlib.closing(RedisStore.from_url(url)) as store:
            store.invalidate("k", 7)  # this makes the script known
        self.pool = stack.enter_context(ThreadPoolExecutor(50))
        stack.callback(self._end)

    def _end(self) -> None:
        with contextlib.suppress(redis.ConnectionError):
            self.admin.client_kill_filter(_type="normal", skipme=True)  # ends the waiters that are left

    def open(self, **options: Any) -> Queueing:  # noqa: ANN401 - as redis-py takes them
        prefix, module = options.pop("prefix", ""), redis if self.blocking else redis.asyncio
        stores = opening(RedisStore if self.blocking else AsyncRedisStore, blocking=self.blocking)
        return cast(
            "Queueing", self.stack.enter_context(stores).open(module.Redis.from_url(self.url, **options), prefix=prefix)
        )

    def start(self, store: Queueing, key: str, timeout: float = 30.0) -> Future[Entry | None]:
        return self._begin(partial(wait, store, key, timeout))

    def watch(self, store: Queueing, key: str, version: int) -> Future[Entry | None]:
        return self._begin(partial(store.wait_while, key, version, 30.0))

    def _begin(self, work: Callable[[], T]) -> Future[T]:
        before = self.blocked()
        started = self.pool.submit(work)
        assert until(lambda: self.blocked() > before or started.done())
        return started

    def blocked(self) -> int:
        return sum("b" in each["flags"] for each in self.admin.client_list())

    def keys(self) -> set[bytes]:
        return set(self.admin.keys())


@pytest.fixture(params=["blocking", "asyncio"])
def here(request: pytest.FixtureRequest, redis_server: Server) -> Iterator[Waiting]:
    """Either API."""
    with contextlib.ExitStack() as stack:
        yield Waiting(request.param, redis_server.url, stack)


@pytest.fixture(params=["blocking", "asyncio"])
def new(request: pytest.FixtureRequest, new_redis: NewServer) -> Iterator[New]:
    """Either API, on a private server."""
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> tuple[Waiting, Server]:
            server = new_redis(*options)
            return Waiting(request.param, server.url, stack), server

        yield start


def wait(store: QueueingStore, key: str, timeout: float = 30.0) -> Entry | None:
    return store.put_when_absent(key, b"w", 30.0, timeout)


@pytest.mark.parametrize("key", ["k", "{a}b", "a{b", "a}b", "{}", "schlüssel", "a b\r\n", "🔑" * 1024])
def test_a_removal_wakes_a_waiter_and_says_so(here: Waiting, key: str) -> None:
    """The removal answers WOKEN, the waiter has written, and nothing else is left behind."""
    store = here.open(prefix="p:")
    entry = put(store, key)
    waiter = here.start(store, key)
    assert store.put_if_version(key, b"refused", ABSENT, 30) == entry
    assert store.invalidate(key, 7) == entry
    assert here.blocked() == 1
    assert not waiter.done()
    begun = time.monotonic()
    assert store.invalidate(key, entry.version) is WOKEN
    written = won(waiter)
    assert written.version > entry.version
    assert store.get(key) == written
    assert here.keys() == {f"p:{key}".encode()}
    # Redis counts in whole milliseconds.
    left = here.admin.pttl(f"p:{key}")
    assert 29_998 - 1000 * (time.monotonic() - begun) < left <= 30_001


def test_where_only_a_marker_is_left_it_puts_at_once(here: Waiting) -> None:
    """It does not block, has no ticket, and takes no other's token."""
    store = here.open()
    entry = put(store, "k")
    other = here.start(store, "k")
    here.admin.set("marker", b"7!gone")
    with Stopwatch() as watch:
        written = wait(store, "marker")
    assert watch.seconds < 5
    assert written is not None
    assert written == store.get("marker") == (b"w", written.version)
    assert store.invalidate("marker", written.version) is None
    assert not other.done()
    assert store.invalidate("k", entry.version) is WOKEN
    assert store.invalidate("k", won(other).version) is None
    assert here.keys() == set()


def test_a_change_wakes_all_who_watch_and_a_removal_one_waiter_besides(here: Waiting) -> None:
    """Neither takes what is meant for the other, and who watches gets what is there then."""
    store = here.open()
    entry = put(store, "k")
    waiters = [here.start(store, "k") for _ in range(2)]
    for change in ("put", "removal"):
        watchers = [here.watch(store, "k", entry.version) for _ in range(3)]
        if change == "put":
            entry = put(store, "k", b"a", entry.version)
        else:
            assert store.invalidate("k", entry.version) is WOKEN
        found = {each.result(50) for each in watchers}
        assert change == "removal" or found == {entry}
    written = won(waiters[0])
    assert here.blocked() == 1
    assert store.invalidate("k", written.version) is WOKEN
    assert store.invalidate("k", won(waiters[1]).version) is None


def test_only_who_watches_leaves_something_and_not_for_long(here: Waiting) -> None:
    """The last change, for a minute after the last watch has begun; it wakes nobody who comes later."""
    store = here.open()
    entry = put(store, "k")
    store.wait_while("k", entry.version, 0.001)
    begun = time.monotonic()
    entry = put(store, "k", b"a", entry.version)
    for _ in range(3):
        with Stopwatch() as watch:
            store.wait_while("k", entry.version, 0.1)
        assert watch.elapsed >= 0.1
    assert here.admin.xlen(b"k\xffchanges") == 1
    assert store.invalidate("k", entry.version) is None
    assert here.keys() == {b"k\xffchanges"}
    assert 60_150 >= here.admin.pttl(b"k\xffchanges") > 59_998 - 1000 * (time.monotonic() - begun)  # pttl first
    with Stopwatch() as watch:
        store.wait_while("k", entry.version, 20)
    assert watch.seconds < 5


def test_a_change_is_made_though_it_can_wake_nobody(here: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else is where the changes should be: who watches polls, and who queues is woken all the same."""
    monkeypatch.setattr("caslock.stores.redis.connections._SLEEP", 60.0)  # seconds without a wait after a refused one
    store = here.open()
    entry = put(store, "k")
    here.admin.set(b"k\xffchanges", "of another program")
    store.wait_while("k", entry.version, 20)
    unsent(lambda: store.wait_while("k", entry.version, 20), "can't serve another waiter now")
    entry = put(store, "k", b"a", entry.version)
    waiter = here.start(store, "k")
    assert store.invalidate("k", entry.version) is WOKEN
    assert store.invalidate("k", won(waiter).version) is None
    assert here.keys() == {b"k\xffchanges"}
    assert here.admin.pttl(b"k\xffchanges") == -1


def test_a_wait_ends_with_its_timeout_and_so_does_its_ticket(here: Waiting) -> None:
    """It answers what is there, however long the socket's timeout is, and later removals wake nobody: they clean up."""
    store = here.open(socket_timeout=20)
    here.admin.set("foreign", b"hello")
    entry = put(store, "k")
    for key, stands in (("k", entry), ("foreign", Entry(b"hello", FOREIGN))):
        with Stopwatch() as watch:
            assert wait(store, key, 0.2) == stands
        assert watch.elapsed >= 0.2
        assert watch.seconds <= 0.2 + WAIT_ENDS
    assert wait(store, "k", 1e-9) == entry
    assert until(lambda: all(score < now(here) for score in scores(here)))
    assert store.invalidate("k", entry.version) is None
    assert here.keys() == {b"foreign", b"foreign\xffwaiters"}
    assert here.admin.pttl(b"foreign\xffwaiters") <= 60_150


def test_tickets_that_have_ended_wake_nobody(here: Waiting) -> None:
    """They are dropped in passing, because one that waits longer keeps the set."""
    store = here.open()
    entry = put(store, "k")
    waiter = here.start(store, "k")
    for _ in range(3):
        assert wait(store, "k", 0.001) == entry
    assert until(lambda: all(score < now(here) for score in scores(here)[:-1]))
    assert store.invalidate("k", entry.version) is WOKEN
    assert store.invalidate("k", won(waiter).version) is None
    assert here.keys() == set()


@pytest.mark.long
def test_tickets_do_not_pile_up(here: Waiting) -> None:
    """While a key is held for hours, many wait and give up: one that takes a ticket drops those that have ended."""
    store = here.open()
    entry = put(store, "k")
    waiter = here.start(store, "k")
    for _ in range(20):
        assert wait(store, "k", 0.001) == entry
    assert until(lambda: sum(score >= now(here) for score in scores(here)) == 1)
    assert len(scores(here)) > 1
    assert wait(store, "k", 0.001) == entry
    assert len(scores(here)) == 2
    assert store.invalidate("k", entry.version) is WOKEN
    won(waiter)


def test_no_wait_is_so_short_that_redis_6_2_takes_it_for_endless() -> None:
    """Which is what 0.001 means to its BLPOP."""
    store = RedisStore.from_url("redis://localhost")
    assert store._requests.put_when_absent("k", b"a", 30, 1e-9).before.endswith(b"\r\n0.002\r\n")
    store.close()


def test_a_wait_in_vain_is_eleven_commands(new: New) -> None:
    """Those that its two scripts run included: to wait in line for hours costs a server next to nothing."""
    here, _ = new()
    store = here.open()
    entry = put(store, "k")
    assert wait(store, "k", 0.001) == entry  # the connection is open from here on
    here.admin.config_resetstat()
    assert wait(store, "k", 0.001) == entry
    stats = here.admin.info("commandstats")
    assert {name: stat["calls"] for name, stat in stats.items() if "config" not in name} == {
        "cmdstat_eval": 2,  # the ticket; the put
        "cmdstat_time": 1 + 1,
        "cmdstat_zremrangebyscore": 1,
        "cmdstat_get": 1 + 1,
        "cmdstat_zadd": 1,
        "cmdstat_pexpire": 1,
        "cmdstat_blpop": 1,
        "cmdstat_set": 1,
    }


def scores(here: Waiting) -> list[float]:
    return [score for _, score in here.admin.zrange(b"k\xffwaiters", 0, -1, withscores=True)]


def now(here: Waiting) -> float:
    seconds, rest = here.admin.time()
    return int(seconds) * 1000 + int(rest) / 1000


def won(waiter: Future[Entry | None]) -> Entry:
    entry = present(waiter.result(50))
    assert entry.value == b"w"
    return entry


def test_no_helper_lives_for_ever(here: Waiting) -> None:
    """The tickets go a minute after the last was taken, and no wait lasts longer than that."""
    store = here.open()
    put(store, "k")
    here.start(store, "k", 1e9)
    here.start(store, "k", 20)
    begun = time.monotonic()
    here.start(store, "k", float("inf"))
    left = here.admin.pttl(b"k\xffwaiters")
    assert 59_998 - 1000 * (time.monotonic() - begun) < left <= 60_150
    assert max(scores(here)) <= now(here) + 60_150


def test_a_token_of_a_lost_waiter_costs_nothing_but_time(here: Waiting) -> None:
    """It is kept for a second, and the next waiter takes it for no reason.  The put of the lost one never lands."""
    store, tokens = here.open(), b"k\xfftokens"
    while not here.admin.persist(tokens):  # it is kept from here on; if it was gone by then, all begins again
        entry = put(store, "k")
        waiter = here.start(store, "k")
        here.admin.client_kill_filter(_type="normal", skipme=True)
        assert isinstance(waiter.exception(50), StoreUnavailable)
        assert store.invalidate("k", entry.version) is WOKEN
        assert store.get("k") is None
        assert -1 != here.admin.pttl(tokens) <= 1000
    entry = put(store, "k")
    assert wait(store, "k") == entry
    assert not here.admin.exists(tokens)
    assert store.invalidate("k", entry.version) is WOKEN  # the ticket of the wait that found a token lying there
    assert until(lambda: here.keys() == set())


def test_waiting_connections_are_bounded_and_used_again(new: New) -> None:
    """One more than 32 is refused at once, and the store's own requests go on."""
    here, _ = new()
    store = here.open(client_name="ours")
    entry = put(store, "k")
    waiters = [here.start(store, "k") for _ in range(MOST_WAITING)]
    unsent(lambda: wait(store, "k"), "can't serve another waiter now")
    for waiter in waiters:
        assert store.invalidate("k", entry.version) is WOKEN
        entry = won(waiter)
    waiter = here.start(store, "k")
    assert store.invalidate("k", entry.version) is WOKEN
    won(waiter)
    names = [each["name"] for each in here.admin.client_list()]
    assert names.count("ours") <= MOST_WAITING + 1


@pytest.mark.parametrize("when", ["before", "meanwhile", "both"])
def test_a_server_that_forgot_the_scripts_learns_them_again(here: Waiting, when: str) -> None:
    """A waiter takes its ticket all the same, is woken all the same, and puts once."""
    store = here.open()
    entry = put(store, "k")
    for _ in range(2):
        if when != "meanwhile":
            here.admin.script_flush()
        waiter = here.start(store, "k")
        assert until(lambda: scores(here))
        if when != "before":
            here.admin.script_flush()
        assert not waiter.done()
        assert store.invalidate("k", entry.version) is WOKEN
        entry = won(waiter)
        assert store.get("k") == entry
    assert store.invalidate("k", entry.version) is None
    assert here.keys() == set()


def test_a_server_that_forgot_the_scripts_lets_put_where_nothing_is_there(here: Waiting) -> None:
    """At once; and at the timeout it says who holds the key."""
    store = here.open()
    here.admin.script_flush()
    with Stopwatch() as watch:
        written = wait(store, "k")
    assert watch.seconds < 5
    assert present(written).value == b"w"
    here.admin.script_flush()
    waiter = here.start(store, "k", 0.5)
    assert until(lambda: scores(here))
    here.admin.script_flush()
    assert waiter.result(50) == written


def test_a_waiter_without_a_ticket_waits_its_time(new: New) -> None:
    """The server has lost the scripts, and has no connection left for the ticket."""
    here, _ = new()
    store = here.open()
    entry = put(store, "k")
    assert wait(store, "k", 0.001) == entry
    here.admin.script_flush()
    here.admin.config_set("maxclients", len(here.admin.client_list()))
    begun = time.monotonic()
    assert wait(store, "k", 0.2) == entry
    assert time.monotonic() - begun >= 0.2


def test_a_client_that_may_not_wait_sleeps(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to block, it puts at once, and for a second it says that it can't wait."""
    monkeypatch.setattr("caslock.stores.redis.connections._SLEEP", 60.0)  # in place of that second
    here, server = new()
    here.admin.execute_command("ACL SETUSER plain on nopass ~* +get +set +del +time +eval +evalsha +client +hello")
    here.url = server.url.replace("//", "//plain@")
    store = here.open()
    entry = put(store, "k")
    assert wait(store, "k") == entry
    unsent(lambda: wait(store, "k"), "can't serve another waiter now")
    assert store.invalidate("k", entry.version) is None


def test_a_user_who_may_touch_the_keys_alone_writes_and_wakes_nobody(new: New) -> None:
    """Redis refuses a script for any name that it is given."""
    here, server = new()
    here.admin.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "~k", "~l", "+@all")
    here.url = server.url.replace("//", "//narrow@")
    store = cast("Any", here.open())
    entry = put(store, "k")
    entry = put(store, "k", b"a", entry.version)
    puts = [Put("k", b"b", entry.version, 30.0), Put("l", b"b", ABSENT, 30.0)]
    one, other = store.put_many(puts)
    assert store.invalidate_many([Removal("k", one.version), Removal("l", other.version)]) == [None, None]
    assert store.invalidate("k", put(store, "k").version) is None
    assert store.get("k") is None
    with pytest.raises(StoreError, match="Grant the user"):
        put(store, "other")


def test_a_full_server_wakes_all_the_same(new: New) -> None:
    """A removal is allowed, and so are its token and the ticket; the put of the woken waiter is refused."""
    here, _ = new()
    store = here.open()
    entry = put(store, "k")
    here.admin.config_set("maxmemory", "1")
    waiter = here.start(store, "k")
    assert wait(store, "k", 0.01) == entry
    with pytest.raises(StoreError, match="maxmemory"):
        wait(store, "gone")
    assert store.invalidate("k", entry.version) is WOKEN
    assert isinstance(waiter.exception(50), StoreError)
    assert not isinstance(waiter.exception(), StoreUnavailable)


@pytest.mark.parametrize("options", [{"protocol": 3}, {"protocol": 3, "decode_responses": True}, {"protocol": 2}])
def test_the_protocol_does_not_matter(here: Waiting, options: dict[str, Any]) -> None:
    """RESP 2 and 3."""
    store = here.open(**options)
    entry = put(store, "k")
    assert wait(store, "k", 0.01) == entry
    waiter = here.start(store, "k")
    assert store.invalidate("k", entry.version) is WOKEN
    won(waiter)


def test_bad_arguments_are_refused_before_anything_is_sent(here: Waiting) -> None:
    """A ValueError does not need a server."""
    here.url = f"redis://{HOST}:{free_port()}"
    store = here.open()
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout must be"):
            wait(store, "k", timeout)
    with pytest.raises(ValueError, match="key"):
        wait(store, "")
    with pytest.raises(ValueError, match="ttl must be"):
        store.put_when_absent("k", b"", 0, 1)


@in_a_loop
async def test_a_cancelled_wait_drops_its_connection(redis_server: Server) -> None:
    """At whatever step it is cancelled, and the place it took is free again."""
    store = AsyncRedisStore.from_url(redis_server.url)
    entry = present(await store.put_if_version("cancelled", b"a", ABSENT, 30))
    for steps in range(60):
        task = asyncio.create_task(store.put_when_absent("cancelled", b"w", 30, 30))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.get("cancelled") == entry
    connections: Any = store._connections
    assert not connections.here()._waiters._places.here()
    await store.invalidate("cancelled", entry.version)
    assert await store.get("cancelled") is None
    await store.aclose()
