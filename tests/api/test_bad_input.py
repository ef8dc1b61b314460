"""Bad input is refused before any request to a store, and what looks strange but is valid works."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import redis

from caslock import (
    AsyncHold,
    AsyncLock,
    AsyncMultiHold,
    AsyncMultiLock,
    Hold,
    Lock,
    MultiHold,
    MultiLock,
    QuorumLock,
    ReadWriteLock,
    Traits,
)
from caslock.protocol import record
from caslock.protocol.record import MAX_HOLDS
from caslock.store import MAX_VALUE
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.steps import again
from tests.support.lasting import Lasting
from tests.support.locations import Place, fresh, observed, present, until
from tests.support.loops import in_a_loop


class Untouchable:
    traits = Traits(location="untouchable://")

    def get(self, *arguments: Any, **named: Any) -> NoReturn:  # noqa: ANN401 - whatever is asked
        raise AssertionError(arguments, named)

    put_if_version = invalidate = get


STORE = Untouchable()

Making = Any  # arguments of every wrong type, which is what these tests are about

MAKERS: list[Callable[..., Making]] = [
    Lock,
    AsyncLock,
    lambda store, key, **settings: MultiLock(store, ["first", key], **settings),
    lambda store, key, **settings: AsyncMultiLock(store, ["first", key], **settings),
]
every_lock = pytest.mark.parametrize("make", MAKERS, ids=["Lock", "AsyncLock", "MultiLock", "AsyncMultiLock"])


async def too_late(_hold: object) -> None:
    """Be a callback that would never be awaited."""


LEASES, TIMES = ("ttl", "max_hold"), ("ttl", "max_hold", "timeout")
NOT_POSITIVE = (0, 0.0, -1, -0.001, math.nan, math.inf, -math.inf)
NO_NUMBERS: tuple[object, ...] = ("5", b"5", [], 1j)
NEVER_NEGATIVE = "timeout must be 0 or more seconds, or None to wait forever"
BAD_SETTINGS: list[tuple[str, object, type[Exception], str]] = [
    *((name, value, ValueError, name) for name in (*LEASES, "min_hold") for value in NOT_POSITIVE),
    # A lease of which the margin for clocks that drift leaves nothing to use.
    *((name, 0.0099, ValueError, rf"{name} must be at least 0\.01 seconds") for name in LEASES),
    *((name, 1e-9, ValueError, rf"{name} must be at least 0\.01 seconds") for name in LEASES),
    *((name, 1.7e308, ValueError, rf"{name} must be at most 1,000,000,000 seconds") for name in LEASES),
    *((name, value, TypeError, name) for name in TIMES for value in NO_NUMBERS),
    *((name, 10**400, ValueError, name) for name in TIMES),  # no float can hold it
    ("ttl", True, ValueError, "ttl"),  # it was meant for another argument
    *(("timeout", value, ValueError, NEVER_NEGATIVE) for value in (-2, -0.001, math.nan, math.inf)),
    # As JSON in UTF-8, 1,024 bytes of a note and 512 of an owner.
    *(("note", value, ValueError, "note") for value in ("x" * 1025, "\n" * 513, "é" * 513, "😀" * 257, "\ud800")),
    *(("owner", value, ValueError, "owner") for value in ("", "x" * 513, "é" * 257, '"' * 257, "\udfff")),
    *(
        (name, value, TypeError, name)
        for name, value in (("note", None), ("note", b"x"), ("owner", 7), ("owner", b"x"))
    ),
    *(("retry", (bad, 0), ValueError, "retry") for bad in (-1, 101, 0.5, "1", math.nan)),
    *(("retry", (0, bad), ValueError, "retry") for bad in (-1, 101)),
    *(("retry", bad, TypeError, "retry must be two numbers") for bad in (3, None, (1, 2, 3))),
    ("on_lost", 3, TypeError, "on_lost must be callable, or None, not 3"),
    ("on_lost", too_late, TypeError, "on_lost must be a plain function, not an `async def`"),
    *(("auto_renew", bad, TypeError, "auto_renew") for bad in ("no", 0, None)),  # "no" would be taken for True
]


@every_lock
@pytest.mark.parametrize(("name", "value", "error", "told"), BAD_SETTINGS)
def test_a_bad_setting_is_refused_by_its_name(
    make: Callable[..., Making], name: str, value: object, error: type[Exception], told: str
) -> None:
    """Lengths of time, texts, retries, callbacks and switches of the wrong type, or out of bounds."""
    with pytest.raises(error, match=told):
        make(STORE, "key", **{name: value})


@every_lock
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"min_hold": 3, "max_hold": 2}, "min_hold must not be more than max_hold: 3 seconds are more than 2"),
        ({"min_hold": 3, "owner": "us"}, "min_hold needs a private owner, so leave out owner"),
        ({"min_hold": 604_801}, r"min_hold must be at most 604,800 seconds \(a week\), not 604801"),
    ],
)
def test_a_min_hold_that_cannot_be_kept_is_refused(
    make: Callable[..., Making], settings: dict[str, object], told: str
) -> None:
    """min_hold is at most max_hold, and a week, and needs a private owner."""
    with pytest.raises(ValueError, match=told):
        make(STORE, "key", **settings)
    make(STORE, "key", min_hold=2, max_hold=2)
    make(STORE, "key", min_hold=604_800)


def test_a_key_that_is_kept_from_all_is_not_had_again_at_once() -> None:
    """That is what min_hold and linger would ask for together."""
    with pytest.raises(ValueError, match="linger lets this process have the key again at once, which min_hold forbids"):
        Lock(MemoryStore(), "key", min_hold=2, linger=1)


@every_lock
def test_a_min_hold_is_refused_where_no_record_ends_by_itself(make: Callable[..., Making]) -> None:
    """The key of a nightly job would be taken in the next night, or for ever."""
    with pytest.raises(ValueError, match=r"a store that ends leases by itself, which untouchable:// does not"):
        make(Lasting(STORE), "key", min_hold=3)


def test_the_shortest_lease_can_be_used() -> None:
    """A lease of 10 ms is held when acquire returns, with most of it left, unless the machine has stopped meanwhile."""
    assert until(lambda: present(again(Lock(MemoryStore(), "key", ttl=0.01).acquire)).remaining() > 0.005)


def test_a_timeout_of_minus_one_waits_for_ever_as_in_threading() -> None:
    """-1 is for ever, as a lock's own timeout and in acquire: the waiter gets the key when its holder leaves."""
    memory, key = MemoryStore(), fresh()
    for settings, argument in (({"timeout": -1}, {}), ({"timeout": 0}, {"timeout": -1})):
        hold = present(Lock(memory, key).acquire())
        leaving = threading.Timer(0.05, hold.release)
        leaving.start()
        make: Making = Lock
        lock = make(memory, key, **settings)
        with lock.acquire(**argument):
            leaving.join()


@every_lock
@pytest.mark.parametrize("value", [-2, -0.5, math.nan, math.inf])
@in_a_loop
async def test_the_timeout_of_acquire_must_not_be_negative(make: Callable[..., Making], value: float) -> None:
    """acquire refuses a negative timeout other than -1, NaN and infinity, before it asks the store."""
    lock = make(STORE, "key")
    with pytest.raises(ValueError, match="timeout"):
        await lock.acquire(timeout=value)  # only those of asyncio are awaited


@pytest.mark.parametrize(
    "make", [*MAKERS, ReadWriteLock, lambda _, key: QuorumLock([MemoryStore() for _ in range(3)], key)]
)
@pytest.mark.parametrize(
    ("key", "error"),
    [
        *((key, ValueError) for key in ("", "x" * 1025, chr(0xD800), f"a{chr(0xDFFF)}b", chr(0xDC80) * 2)),
        *((key, TypeError) for key in (None, 42, b"room", ["room"], ("a", "b"))),
    ],
)
def test_a_key_must_be_a_str_of_1_to_1024_characters(
    make: Callable[..., Making], key: object, error: type[Exception]
) -> None:
    """One that is empty, has 1,025 characters or a lone surrogate is a ValueError; any other type is a TypeError."""
    with pytest.raises(error, match=r"key must|key contains a lone surrogate"):
        make(STORE, key)


@pytest.mark.parametrize(
    ("name", "value"), [("note", "x" * 1024), ("note", "ж" * 512), ("owner", "é" * 256), ("owner", "\x7f\u2028")]
)
def test_a_note_or_owner_that_fits_comes_back(name: str, value: str) -> None:
    """A note of 1,024 bytes and an owner of 512 as UTF-8 are what `holder` shows."""
    lock = Lock(MemoryStore(), "key", **{name: value})  # type: ignore[arg-type] # one of two settings
    with lock:
        assert getattr(lock.holder(), name) == value


@pytest.mark.parametrize(("several", "one"), [(MultiLock, Lock), (AsyncMultiLock, AsyncLock)])
@pytest.mark.parametrize("settings", [{"ttl": 5}, {"tll": 5}, {"owner": "x", "max_hold": 1}])
def test_locks_that_are_handed_over_take_no_settings(
    several: Callable[..., Making], one: Callable[..., Making], settings: dict[str, object]
) -> None:
    """They have their own; what would be ignored is a TypeError that names it."""
    store = AsyncMemoryStore() if one is AsyncLock else MemoryStore()
    with pytest.raises(TypeError, match=", ".join(settings)):
        several([one(store, "a"), one(store, "b")], **settings)


@every_lock
@pytest.mark.parametrize(
    "store",
    [None, "redis://localhost", {}, redis.Redis(), redis.asyncio.Redis(), MemoryStore],
    ids=lambda it: type(it).__name__,
)
def test_a_store_must_be_one(make: Callable[..., Making], store: object) -> None:
    """A URL, a dict, a client or a class in place of the store is a TypeError that says how to make one."""
    what = "expected a store, not the class MemoryStore.*" if store is MemoryStore else ""
    with pytest.raises(TypeError, match=rf"{what}caslock\.connect"):
        make(store, "key")


def test_extend_checks_its_ttl_before_it_asks() -> None:
    """extend refuses what a lock would refuse as ttl, and the hold stays what it was."""
    hold = present(Lock(MemoryStore(), "key").acquire())
    before = hold._attempt.lease.version
    for ttl in (0, -1, 0.001, math.nan, math.inf):
        with pytest.raises(ValueError, match="ttl"):
            hold.extend(ttl)
    wrong: Making = "5"
    with pytest.raises(TypeError, match="ttl"):
        hold.extend(wrong)
    assert hold._attempt.lease.version == before
    hold.release()


@pytest.mark.parametrize("kind", [MultiLock, AsyncMultiLock])
def test_keys_must_be_several(kind: Callable[..., Making]) -> None:
    """One str in place of keys is a TypeError, not a lock on each of its characters; no keys are a ValueError."""
    with pytest.raises(TypeError, match="keys"):
        kind(STORE, "room")
    nothing: list[Making] = [[], (), iter([])]
    for none in nothing:
        with pytest.raises(ValueError, match="at least one"):
            kind(STORE, none)
    with pytest.raises(ValueError, match="at least one"):
        kind([])


@pytest.mark.parametrize(("kind", "one", "other"), [(MultiLock, Lock, AsyncLock), (AsyncMultiLock, AsyncLock, Lock)])
def test_locks_must_be_locks_of_the_same_api(
    kind: Callable[..., Making], one: Callable[..., Making], other: Callable[..., Making]
) -> None:
    """A store without keys, keys without a store, a single lock, and one of the other API are TypeErrors."""
    for wrong in (STORE, ["a", "b"], "room", [one(STORE, "a"), "b"], None, 5):
        with pytest.raises(TypeError):
            kind(wrong)
    told = f"expected a store and keys, or {one.__name__} objects, not "
    for wrong, named in ((one(STORE, "a"), ""), ([1], r"\[1\]")):  # no lock: no class is suggested
        with pytest.raises(TypeError, match=told + named) as caught:
            kind(wrong)
        assert "use " not in str(caught.value)
    for locks in ([one(STORE, "a"), other(STORE, "b")], [other(STORE, "b")]):
        several = AsyncMultiLock if kind is MultiLock else MultiLock
        expected = f"expected {one.__name__} objects; use {several.__name__} for {other.__name__} objects"
        with pytest.raises(TypeError, match=expected):
            kind(locks)


@pytest.mark.parametrize("kind", [MultiLock, AsyncMultiLock])
@pytest.mark.parametrize(("arguments", "told"), [((STORE,), "None"), ((STORE, None), "None"), ((STORE, 5), "5")])
def test_keys_that_are_missing_are_asked_for(
    kind: Callable[..., Making], arguments: tuple[object, ...], told: str
) -> None:
    """A store without keys, or with what is no list of them: the error is about the keys, not about the store."""
    with pytest.raises(TypeError, match=rf"^keys must be a list such as \['room:42'\], not {told}$"):
        kind(*arguments)


def test_the_largest_record_fits(location: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest owner and note, with as many holds as there may be, fit in 4,096 bytes; one more is just busy."""
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 64)
    store, key, owner, note = location.store(), fresh(), "é" * 256, "\n" * 512
    locks = [Lock(store, key, ttl=60, owner=owner, note=note) for _ in range(MAX_HOLDS)]

    holds: list[Hold | None] = [lock.acquire(timeout=0) for lock in locks]

    assert None not in holds
    assert len({hold.fence for hold in holds if hold}) == 1
    entry = present(store.get(key))
    digits = 10 * (MAX_HOLDS + 1)  # those that the number of a hold gains while its Lock is used ten milliard times
    assert 3000 < len(entry.value) <= MAX_VALUE - digits
    found = record.decode(entry.value)
    assert (found.owner, found.note, len(found.holds)) == (owner, note, MAX_HOLDS)
    assert Lock(store, key, owner=owner).acquire(timeout=0) is None
    for hold in holds:
        assert hold is not None
        hold.release()
    assert observed(store, key) is None


def test_the_longest_owner_and_note_are_accepted() -> None:
    """The bounds themselves are allowed."""
    for settings in ({"owner": "x" * 512}, {"note": "x" * 1024}, {"retry": (0, 100)}, {"timeout": 0}, {"ttl": 0.01}):
        make: Making = Lock
        make(STORE, "x" * 1024, **settings)


@every_lock
@pytest.mark.parametrize("blocking", [10, 0, 1, 0.5, None, "no"])
def test_what_says_whether_to_wait_is_no_number(make: Callable[..., Making], blocking: object) -> None:
    """The first argument of acquire is that of threading.Lock: ``acquire(10)`` would wait forever."""
    acquire: Callable[..., object] = make(STORE, "key").acquire
    with pytest.raises(TypeError, match=r"blocking must be True or False, not .*: the seconds to wait are acquire"):
        acquire(blocking)


@every_lock
def test_an_unknown_argument_is_refused(make: Callable[..., Making]) -> None:
    """Where the lock is made, and by its methods: a timeout that is spelt wrong would wait forever."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'blocking_timeout'"):
        make(STORE, "key", blocking_timeout=1)
    acquire: Callable[..., object] = make(STORE, "key").acquire
    with pytest.raises(TypeError, match="unexpected keyword argument 'blocking_timeout'"):
        acquire(blocking_timeout=1)


@pytest.mark.parametrize("kind", [Hold, AsyncHold, MultiHold, AsyncMultiHold])
def test_an_extension_takes_seconds_only(kind: type[Any]) -> None:
    """redis-py's ``extend(10, additional_time=...)`` has another meaning."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'additional_time'"):
        kind.extend(object.__new__(kind), additional_time=1)
