"""Something happens at each moment of a wait in PostgreSQL: the change, another wait, or an interrupt."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import pytest

from caslock.store import Entry
from caslock.testing.steps import in_a_thread
from caslock.testing.stopwatch import Stopwatch
from tests.api.test_fork_and_signals import interrupted
from tests.stores.opening import put
from tests.stores.test_sql_wait import LONG, SOON, Postgres
from tests.support.locations import fresh, until
from tests.support.servers import Server

OURS = ("/caslock/stores/sql/",)


@pytest.fixture
def postgres(postgresql_server: Server) -> Iterator[Postgres]:
    """Return the shared server, with the blocking API."""
    with contextlib.ExitStack() as stack:
        yield Postgres(postgresql_server, stack, blocking=True)


@pytest.mark.long
def test_a_removal_at_any_moment_ends_the_wait(postgres: Postgres) -> None:
    """None is missed, whether it comes before the wait looks, while it begins to listen, or afterwards."""
    store, other = postgres.open(timeout=10), postgres.open(timeout=10)

    def one(moment: int) -> tuple[str, float, float]:
        key, removed = fresh(), list[float]()
        version = put(other, key).version

        def remove() -> None:
            other.invalidate(key, version)
            removed.append(watch.seconds)

        with Stopwatch() as watch:
            location = interrupted(moment, lambda: store.wait_while(key, version, SOON / 4), happens=remove, among=OURS)
        before = min([watch.seconds, *removed])
        return location, before, watch.seconds - before

    for moment in itertools.count():
        location, before, after = one(moment)
        if not location or before > SOON / 5:  # it is over
            break
        assert after < SOON / 8, location
    assert moment > 50


@pytest.mark.long
def test_another_wait_may_come_at_any_moment(postgres: Postgres) -> None:
    """It begins and ends on the same connection, for another key."""
    store = postgres.open(timeout=10)
    lasting = fresh()
    version = put(store, lasting).version

    def one(moment: int) -> str:
        others, key = list[Future[Entry | None]](), fresh()
        mine = put(store, key).version

        def another() -> None:
            others.append(in_a_thread(lambda: store.wait_while(lasting, version, 0.1)))
            with contextlib.suppress(TimeoutError):
                others[0].result(0.03)  # it has most likely begun, unless it has to wait for ours

        location = interrupted(
            moment, lambda: store.wait_while(key, mine, 0.01), happens=another, among=["listener.py"]
        )
        for each in others:
            each.result(SOON)
        return location

    moment = next(moment for moment in itertools.count() if not one(moment))
    assert moment > 20


@pytest.mark.long
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # psycopg closes a connection that it had
@pytest.mark.parametrize("opens", [True, False])
def test_the_next_wait_is_served_wherever_an_interrupt_strikes(postgres: Postgres, opens: bool) -> None:  # noqa: FBT001 - a parameter
    """Nor does the server believe that anybody still waits for that key."""
    store, other = postgres.open(timeout=10), postgres.open(timeout=10)
    version = put(other, fresh()).version
    for moment in itertools.count():
        if opens:
            cast("Any", store).close()
            store = postgres.open(timeout=10)
        key = fresh()
        entry = put(other, key)
        wait = partial(store.wait_while, key, entry.version, 0.01)
        if not interrupted(moment, wait, happens=_interrupt, among=["/sql/waits.py"] if opens else OURS):
            break
        with Stopwatch() as watch:
            store.wait_while(fresh(), version, LONG)  # for what is not there
        assert watch.seconds < SOON / 2, f"after the interrupt {moment}"
        assert until(partial(_is_forgotten, postgres, key)), f"after the interrupt {moment}"
    assert moment > 30


def _is_forgotten(postgres: Postgres, key: str) -> bool:
    return not postgres.listeners(key)


def _interrupt() -> None:
    raise KeyboardInterrupt
