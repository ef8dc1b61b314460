"""Which server a store leads to, by whatever name: a MultiLock over several stores sorts and counts keys by that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import caslock
from caslock import MultiLock, Store, connect, connect_async
from caslock.testing.drive import done
from tests.conftest import NewServer
from tests.stores.opening import answers
from tests.support.locations import fresh, observed, until
from tests.support.servers import Server


@pytest.fixture(params=["redis", "memcached"])
def urls(request: pytest.FixtureRequest) -> tuple[str, str]:
    """One server by two names; the first sorts behind the second."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server.url.replace(server.host, "localhost"), server.url


@contextlib.contextmanager
def opened(*urls: str, prefix: str = "") -> Iterator[list[caslock.ClosableStore]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(url, prefix=prefix)) for url in urls]


def said(store: Store) -> object:
    assert isinstance(store, caslock.IdentifiedStore)
    return store.identify()


def test_one_server_says_the_same_by_all_its_names(urls: tuple[str, str]) -> None:
    """Two names, one server; and asyncio gets the same answer."""
    with opened(*urls) as (one, two):
        assert one.traits.location > two.traits.location
        assert said(one) == said(two) is not None

        async def main() -> object:
            async with connect_async(urls[0]) as store:
                return await done(store.identify())  # type: ignore[union-attr] # all of these have it

        assert asyncio.run(main()) == said(two)


def test_one_file_says_the_same_by_all_its_names(tmp_path: Path) -> None:
    """A file that is mounted twice has one device and one number, as one with a hard link has; it is not opened."""
    (tmp_path / "one.db").touch()
    (tmp_path / "two.db").hardlink_to(tmp_path / "one.db")
    with opened(f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db") as (one, two):
        assert one.traits.location != two.traits.location
        assert said(one) == said(two) is not None


@pytest.mark.long
def test_other_servers_say_something_else(
    tmp_path: Path, redis_server: Server, memcached_server: Server, new_redis: NewServer, new_memcached: NewServer
) -> None:
    """Another server, another database of one server, another file: each is another location."""
    other = new_redis()
    stores = [redis_server.url, redis_server.url.removesuffix("0") + "1", other.url]
    stores += [memcached_server.url, new_memcached().url, f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"]
    with opened(*stores) as found:
        for store in found:
            until(lambda store=store: answers(store))  # type: ignore[misc] # a memcached is young for a while
        assert len({said(store) for store in found}) == len(stores)
        before = said(found[2])
        other.restart()
        until(lambda: answers(found[2]))
        assert said(found[2]) != before


def test_the_order_of_keys_follows_a_restarted_server(new_redis: NewServer) -> None:
    """A store that has not noticed the restart takes keys in the order in which all others do."""
    servers = [new_redis(), new_redis()]
    for number in range(40):  # one restart in three changes it
        urls = [server.url for server in servers]
        with opened(*urls) as stores, opened(*urls) as others:
            lock = MultiLock([caslock.Lock(store, fresh(), ttl=60) for store in stores])
            with lock as holds:
                before = [hold._state.runtime.home for hold in holds]
            servers[number % 2].restart()
            assert until(lambda other=others[number % 2]: answers(other))  # type: ignore[misc] # called at once
            expected = [
                store
                for _, store in sorted((str(said(other)), store) for other, store in zip(others, stores, strict=True))
            ]
            with lock as holds:
                assert [hold._state.runtime.home for hold in holds] == expected
        if expected != before:
            return
    raise AssertionError("no restart has changed the order")


def test_a_user_who_may_not_ask_goes_by_the_name(new_redis: NewServer) -> None:
    """Without the right to INFO, the location is the URL."""
    server = new_redis()
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "default", "-info")
    with opened(server.url) as (store,):
        assert said(store) is None
        assert store.get("k") is None


def test_a_key_of_two_names_is_taken_once(urls: tuple[str, str]) -> None:
    """Two stores on one server have the key in common: the MultiLock does not wait for itself."""
    key = fresh()
    with opened(*urls) as (one, two), MultiLock([caslock.Lock(store, key, ttl=60) for store in (one, two)], timeout=50):
        assert observed(one, key) == observed(two, key) is not None


def test_a_prefix_is_a_part_of_the_name(urls: tuple[str, str]) -> None:
    """A prefix and a key that give another store's key are that key."""
    url, key = urls[1], fresh()
    with opened(url) as (plain,), opened(url, prefix="locks:") as (prefixed,):
        locks = [caslock.Lock(plain, f"locks:{key}", ttl=60), caslock.Lock(prefixed, key, ttl=60)]
        with MultiLock(locks, timeout=50) as holds:
            assert len(holds) == 1
            assert observed(plain, f"locks:{key}") is not None
        assert observed(prefixed, key) is None
