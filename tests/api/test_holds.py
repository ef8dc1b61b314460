"""A Hold shows users' names only, and is a context manager that releases it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import pickle
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from caslock import (
    AsyncHold,
    AsyncLock,
    AsyncMultiHold,
    AsyncMultiLock,
    Hold,
    Lock,
    LockLost,
    MultiHold,
    MultiLock,
    NotHeld,
    QuorumLock,
    ReadWriteLock,
    Semaphore,
)
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.command_line import python
from tests.support.locations import present
from tests.support.loops import in_a_loop

Acquire = Callable[[Any], Any]

HOLD = {"key", "owner", "fence", "lost", "remaining", "ensure_held", "extend", "hand_over", "release"}
HOLDS = {"fences", "lost", "remaining", "ensure_held", "extend", "release"}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "names"), [(Hold, HOLD), (AsyncHold, HOLD), (MultiHold, HOLDS), (AsyncMultiHold, HOLDS)]
)
def test_a_hold_shows_names_for_users_only(kind: type, names: set[str]) -> None:
    """Completion on a hold shows what a user may call, and nothing of its inside."""
    assert public(kind) == names


def one(memory: MemoryStore) -> Hold:
    return present(Lock(memory, "k").acquire(timeout=0))


def several(memory: MemoryStore) -> MultiHold:
    return present(MultiLock(memory, ["k", "l"]).acquire(timeout=0))


async def async_one(memory: AsyncMemoryStore) -> AsyncHold:
    return present(await AsyncLock(memory, "k").acquire(timeout=0))


async def async_several(memory: AsyncMemoryStore) -> AsyncMultiHold:
    return present(await AsyncMultiLock(memory, ["k", "l"]).acquire(timeout=0))


EACH = pytest.mark.parametrize("acquire", [one, several, async_one, async_several])


@pytest.fixture
def store(memory: MemoryStore, acquire: Acquire) -> MemoryStore | AsyncMemoryStore:
    """Give the memory to locks of the API of `acquire`."""
    return AsyncMemoryStore(memory) if inspect.iscoroutinefunction(acquire) else memory


async def told(answer: Any) -> Any:  # noqa: ANN401 - of either API
    return await answer if inspect.isawaitable(answer) else answer


@contextlib.asynccontextmanager
async def entered(hold: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - as above
    """Enter a hold by ``with`` or ``async with``."""
    if isinstance(hold, (Hold, MultiHold)):
        with hold as held:
            yield held
    else:
        async with hold as held:
            yield held


@EACH
@in_a_loop
async def test_with_hold_releases_it(memory: MemoryStore, store: object, acquire: Acquire) -> None:
    """``with hold`` gives the hold, and releases it at the end of the block."""
    hold = await told(acquire(store))
    async with entered(hold) as held:
        assert held is hold
        assert memory.get("k") is not None
    assert memory.get("k") is None
    assert hold.remaining() == 0
    with pytest.raises(NotHeld):
        hold.ensure_held()


@pytest.mark.parametrize("acquire", [one, several])
def test_with_hold_reports_a_loss_at_its_end(
    memory: MemoryStore, acquire: Callable[[MemoryStore], Hold | MultiHold]
) -> None:
    """A lease that was lost in the block is LockLost at its end; a block that has raised gets it as a note."""
    with pytest.raises(LockLost, match="'k'"), acquire(memory):
        Lock(memory, "k").force_release()
    error = ValueError("of the body")
    with contextlib.suppress(ValueError), acquire(memory):
        Lock(memory, "k").force_release()
        raise error
    assert ["'k'" in note for note in error.__notes__] == [True]


@pytest.mark.parametrize("acquire", [async_one, async_several])
@in_a_loop
async def test_async_with_hold_is_cancelled_at_a_loss(acquire: Acquire, store: AsyncMemoryStore) -> None:
    """Loss cancels the block of ``async with hold`` as that of ``async with lock``, and is LockLost at its end."""
    hold = await acquire(store)
    cancelled = False
    with pytest.raises(LockLost, match="'k'"):  # noqa: PT012 - raised at the end of the block
        async with hold:
            await AsyncLock(store, "k").force_release()
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                cancelled = True
                raise
    assert cancelled
    task = present(asyncio.current_task())
    assert not task.cancelling()


@EACH
@in_a_loop
async def test_a_block_begins_with_a_lease(memory: MemoryStore, store: Any, acquire: Acquire) -> None:  # noqa: ANN401 - as above
    """``with hold`` of a released hold is NotHeld, of a lost one LockLost, and its block does not run."""
    hold = await told(acquire(store))
    await told(hold.release())
    lost = await told(acquire(store))
    lock = AsyncLock(store, "k") if isinstance(store, AsyncMemoryStore) else Lock(store, "k")
    await told(lock.force_release())
    for ended, error in ((hold, NotHeld), (lost, LockLost)):
        with pytest.raises(error):
            async with entered(ended):
                pytest.fail("the body ran")
    assert await told(lock.acquire(timeout=0)) is not None
    assert memory.get("l") is None, "a lost MultiHold has kept another of its keys"


def test_an_inner_with_releases_once(memory: MemoryStore) -> None:
    """A hold that an inner ``with`` has released is NotHeld at the end of the outer one, or a note to its error."""
    hold = one(memory)
    with pytest.raises(NotHeld), hold, hold:
        pass
    error = ValueError("of the body")
    hold = one(memory)
    with contextlib.suppress(ValueError), hold, hold:
        raise error
    assert ["already been released" in note for note in error.__notes__] == [True]


MAKERS: dict[str, Callable[[MemoryStore], object]] = {
    "Lock": lambda memory: Lock(memory, "k"),
    "MultiLock": lambda memory: MultiLock(memory, ["k", "l"]),
    "AsyncLock": lambda memory: AsyncLock(memory, "k"),
    "AsyncMultiLock": lambda memory: AsyncMultiLock(memory, ["k", "l"]),
    "Hold": one,
    "MultiHold": several,
    "AsyncHold": lambda memory: asyncio.run(async_one(AsyncMemoryStore(memory))),
    "AsyncMultiHold": lambda memory: asyncio.run(async_several(AsyncMemoryStore(memory))),
}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", MAKERS)
def test_no_lock_and_no_hold_is_copied(memory: MemoryStore, kind: str, copied: Callable[[object], object]) -> None:
    """A copy would re-enter what the original holds: copy and pickle raise a TypeError that says what to do."""
    thing = MAKERS[kind](memory)
    keys = "keys" if "Multi" in kind else "key"
    what = f"send the store URL and the {keys}, " if kind.endswith("Lock") else "pass its fence"
    with pytest.raises(TypeError, match=f"{kind} can't be copied or pickled: {what}"):
        copied(thing)


FORGETFUL = """
import asyncio, gc, caslock
store = caslock.connect("memory://")
with caslock.Lock(store, "released"), caslock.MultiLock(store, ["also released", "too"]): pass
lock = caslock.Lock(store, "lost")
lost = lock.acquire()
lock.force_release()
assert lost.lost
del lost, lock
caslock.Lock(store, "forgotten").acquire()
async def acquire():
    async with caslock.AsyncLock(store, "left"): pass
    await caslock.AsyncMultiLock(store, ["both", "forgotten too"]).acquire()
asyncio.run(acquire())
gc.collect()
"""


def test_a_forgotten_hold_warns() -> None:
    """In the development mode of Python, as an open file does: each hold that nobody can release any more."""
    status, _, errors = python("-X", "dev", "-c", FORGETFUL, PYTHONWARNINGS="")
    forgotten = sorted(re.findall("ResourceWarning: unreleased <(.*): .* s remaining>", errors))
    expected = ["AsyncHold of 'both'", "AsyncHold of 'forgotten too'", "Hold of 'forgotten'"]
    assert (status, forgotten) == (0, expected), errors


@pytest.mark.parametrize("kind", [Lock, AsyncLock, MultiLock, Semaphore, ReadWriteLock, QuorumLock])
def test_help_shows_what_users_may_give(kind: type) -> None:
    """Each setting, neither what catches the arguments of other libraries, nor `self`; and an example comes first."""
    given = inspect.signature(kind).parameters
    assert not given.keys() & {"self", "unknown", "settings"}
    assert given.keys() >= {"ttl", "auto_renew", "max_hold", "on_lost", "note", "retry", "poll"}
    assert (given["ttl"].default, "owner" in given) == (30.0, kind in {Lock, AsyncLock, MultiLock})
    assert next(iter(given)) in {"store", "stores"}
    assert ">>> " in (kind.__doc__ or "").split("\n\n")[1]


def test_help_shows_what_a_subclass_takes() -> None:
    """Its own arguments, whatever their names."""

    class Of(Semaphore):
        def __init__(self, store: MemoryStore, settings: int, *, ttl: float = 5.0, **unknown: int) -> None: ...

    assert list(inspect.signature(Of).parameters) == ["store", "settings", "ttl", "unknown"]


def test_help_says_which_timeout_is_the_default() -> None:
    """An acquire without one waits as long as the lock was made to."""
    assert "timeout: 'float | Own | None' = <the lock's own>" in str(inspect.signature(Lock.acquire))
