"""Fixtures of the tests of several stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.servers import Server


@pytest.fixture
def redis_server(_spare_redis: Server) -> Server:
    """A server in place of the shared one, and empty: these tests may remove all that is there."""
    with redis.Redis.from_url(_spare_redis.url) as client:
        client.flushall()
    return _spare_redis


@pytest.fixture
def admin(redis_server: Server) -> Iterator[redis.Redis]:
    """A plain client of that Redis."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client
