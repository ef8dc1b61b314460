"""Forking, closing and `with`: a part of `StoreContract`."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import warnings
from typing import TYPE_CHECKING, Final, cast

import pytest

from caslock.testing.drive import is_async, on_loop
from caslock.testing.steps import in_a_thread, put, remove

if TYPE_CHECKING:
    from caslock.store import AsyncClosableStore, AsyncStore, ClosableStore, Store
    from caslock.testing.steps import Clients

TIMES: Final = 50
"""How often parent and child ask at least, and until the other is half through."""

PATIENCE: Final = 120.0
"""Seconds within which both must have done so."""


class LifeContract:
    """Tests of a store over the life of a process."""

    def test_a_forked_child_has_connections_of_its_own(
        self, caslock_clients: Clients, store: Store | AsyncStore
    ) -> None:
        """After a fork, parent and child ask at the same time, and each gets its own answers.

        A store for asyncio is not tried: its loop is not in the child.
        """
        mine, _, key = caslock_clients
        if is_async(store):
            pytest.skip("the store is for asyncio: its event loop is not in a forked child")
        if not hasattr(os, "fork"):
            pytest.skip("there is no fork here")
        assert mine.get(key) is None  # so that there is a connection to inherit
        reader, writer = os.pipe()
        (childs, tell_childs), (parents, tell_parents) = os.pipe(), os.pipe()  # tell that it is half through
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not use
            child = os.fork()
        if child == 0:
            try:
                os.close(tell_parents)
                _ask_again_and_again(mine, f"{key}:child", tell_childs, parents)
                os.write(writer, b"right")
            except BaseException as error:  # noqa: BLE001 - it is told to the parent
                os.write(writer, repr(error).encode()[:4000])
            finally:
                os._exit(0)
        try:
            os.close(writer)
            os.close(tell_childs)
            outcome = in_a_thread(lambda: _ask_again_and_again(mine, f"{key}:parent", tell_parents, childs))
            ready, _, _ = select.select([reader], [], [], PATIENCE)
            said = os.read(reader, 4000) if ready else b"nothing"
            outcome.result(PATIENCE)
            assert said == b"right", f"the child has said: {said.decode(errors='replace')}"
        finally:
            for pipe in (reader, childs, parents):
                os.close(pipe)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_a_store_is_closed_by_with_and_may_be_closed_again(
        self, caslock_clients: Clients, store: Store | AsyncStore
    ) -> None:
        """A ``with`` (``async with``) gives the store; a second close does nothing; a later request is answered."""
        if not hasattr(store, "aclose" if is_async(store) else "close"):
            pytest.skip("the store has no close (for asyncio: aclose)")
        if is_async(store):
            on_loop(_close_twice(cast("AsyncClosableStore", store)))
        else:
            closable = cast("ClosableStore", store)
            with closable as entered:
                assert entered is store
            closable.close()
        assert caslock_clients.mine.get(caslock_clients.key) is None


async def _close_twice(store: AsyncClosableStore) -> None:
    async with store as entered:
        assert entered is store
    await store.aclose()


def _ask_again_and_again(store: Store, key: str, tell: int, heard: int) -> None:
    """Put, read and remove, each time under another key, and be sure of every answer.

    Go on until the other process has told that it is half through, or has ended; so both ask at the same time.
    """
    number, end = 0, time.monotonic() + PATIENCE / 2
    with os.fdopen(tell, "wb", buffering=0) as half_through:
        while number < TIMES or not (time.monotonic() > end or select.select([heard], [], [], 0)[0]):
            name, value = f"{key}:{number}", f"{os.getpid()} {number}".encode()
            entry = put(store, name, value)
            time.sleep(0)  # so that two processes on one processor take turns
            assert store.get(name) == entry
            remove(store, name, entry.version)
            number += 1
            if number == TIMES // 2:
                half_through.write(b".")
