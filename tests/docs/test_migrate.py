"""A lock of redis-py and one of ours exclude each other on one key, so both can be in use during a migration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

import caslock
from caslock import Lock, NotAcquired
from tests.support.locations import fresh, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

    from tests.support.servers import Server


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    """Return a client of the shared server."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.mark.parametrize("prefix", ["", "locks:"])
def test_a_lock_of_redis_py_keeps_ours_out(client: redis.Redis, pool: ThreadPoolExecutor, prefix: str) -> None:
    """It is held by an unknown owner; once it is released, one that waits gets it."""
    with caslock.connect(client, prefix=prefix) as store:
        key = fresh()
        theirs, ours = client.lock(prefix + key, timeout=30), Lock(store, key, timeout=20)
        assert theirs.acquire(blocking=False)
        assert ours.acquire(timeout=0) is None
        with pytest.raises(NotAcquired, match="an unknown owner"), Lock(store, key, timeout=0):
            pass
        waiting = pool.submit(ours.acquire)
        assert not until(waiting.done, 0.2)
        theirs.release()
        hold = waiting.result(timeout=20)
        assert hold is not None
        hold.release()


@pytest.mark.parametrize("prefix", ["", "locks:"])
def test_ours_keeps_a_lock_of_redis_py_out(client: redis.Redis, prefix: str) -> None:
    """Until it is released; neither an extension nor a release of theirs touches it."""
    with caslock.connect(client, prefix=prefix) as store:
        key = fresh()
        theirs = client.lock(prefix + key, timeout=30)
        with Lock(store, key) as hold:
            assert not theirs.acquire(blocking=False)
            assert theirs.locked()
            assert not theirs.owned()
            hold.ensure_held()
            hold.extend()
        assert theirs.acquire(blocking=False)
        theirs.release()
        assert client.get(prefix + key) is None


def test_theirs_that_has_ended_does_not_remove_ours(client: redis.Redis) -> None:
    """Their release, late, finds a value that is not theirs."""
    with caslock.connect(client) as store:
        key = fresh()
        theirs = client.lock(key, timeout=0.1)
        assert theirs.acquire(blocking=False)
        with Lock(store, key, timeout=20) as hold:
            with pytest.raises(redis.exceptions.LockNotOwnedError):
                theirs.release()
            hold.extend()
