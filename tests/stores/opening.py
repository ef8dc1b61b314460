"""What the tests of stores with two classes, for blocking code and for asyncio, have in common."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from caslock import StoreError, StoreUnavailable
from caslock.store import ABSENT, Entry
from caslock.testing.drive import driven, on_loop
from caslock.testing.steps import timed
from tests.support.locations import fresh, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock import Store
    from caslock.store import WatchingStore

SECRET = "p@ss/w0rd?"  # noqa: S105 - of a user that ends with its test
QUOTED = "p%40ss%2Fw0rd%3F"


class Opening(NamedTuple):
    """How to make stores of one API; they are closed with the test."""

    blocking: bool
    open: Callable[..., Store]


@contextlib.contextmanager
def opening(kind: Callable[..., Any], *, blocking: bool) -> Iterator[Opening]:
    """Make stores of a class; `blocking`: it is one for blocking code."""
    with contextlib.ExitStack() as stack:

        def make(url: str, **settings: Any) -> Store:  # noqa: ANN401 - as the stores take it
            store = kind(url, **settings)
            stack.callback(store.close if blocking else lambda: on_loop(store.aclose()))
            return driven(store)

        yield Opening(blocking, make)


def put(store: Store, key: str, value: bytes = b"v", version: int = ABSENT, ttl: float = 30.0) -> Entry:
    """Write, and expect success."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None
    assert entry.value == value
    assert entry.version > version or not store.traits.fences
    return entry


def refusal(act: Callable[[], object], match: str) -> StoreError:
    """Expect a definite refusal, which says so in one sentence and names the place once."""
    with pytest.raises(StoreError, match=match) as caught:
        act()
    assert not isinstance(caught.value, StoreUnavailable), caught.value
    assert str(caught.value).count("://127.0.0.1") == 1, caught.value
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


def refuse_the_33rd_waiter(store: Store) -> None:
    """It is told at once, without a request, to sleep; the others end with the change."""
    key, watching = fresh(), cast("WatchingStore", store)
    entry = put(store, key)

    def wait() -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):  # `refused` had the last place for a moment
                return watching.wait_while(key, entry.version, 20)

    def refused() -> bool:
        try:
            watching.wait_while(key, entry.version, 0.01)
        except StoreUnavailable as error:
            return not error.sent and "another waiter" in str(error)
        return False

    waits = [timed(wait) for _ in range(32)]
    assert until(refused)
    store.invalidate(key, entry.version)
    assert max(wait.result(50)[0] for wait in waits) < 15
    watching.wait_while(key, entry.version, 0.1)
