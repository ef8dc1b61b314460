"""A store that was closed answers still, and leaves no connection open."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tests.support.locations import fresh

if TYPE_CHECKING:
    from caslock.stores.memcached import MemcachedStore
    from caslock.stores.redis import RedisStore
    from tests.support.locations import Place


@pytest.mark.parametrize("location", ["redis", "memcached"], indirect=True)
def test_a_closed_store_answers_and_leaves_no_connection_open(location: Place) -> None:
    """As a clean-up in the background asks it.  A socket that is left open is a ResourceWarning, which is an error."""
    store: RedisStore | MemcachedStore = location.address.open()  # type: ignore[assignment]
    with store:
        store.get(fresh())
    assert store.get(fresh()) is None
    assert store.put_if_version(fresh(), b"value", 0, 10) is not None
    del store
    gc.collect()
