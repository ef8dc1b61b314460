"""Checks the arguments of users: a bad one gets a clear error before any request is made."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.protocol.attempt import Retry
from caslock.protocol.record import json_size
from caslock.protocol.shares import MAX_PERMITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.store import Traits

T = TypeVar("T")


MAX_OWNER_BYTES: Final = 512
MAX_NOTE_BYTES: Final = 1024
MAX_RETRY: Final = 100
MAX_MIN_HOLD: Final = 7 * 24 * 3600.0
"""Seconds: every store can keep an entry for so long."""
MIN_LEASE: Final = 0.01
"""Seconds.  The margin (`lease.margin`) of a shorter lease would hardly leave time for one request."""
MAX_LEASE: Final = 1e9
"""Seconds, about 32 years.  Stores count in milliseconds or smaller units, which must not overflow."""
_COROUTINE: Final = 0x80  # inspect.CO_COROUTINE


def check_seconds(name: str, value: float) -> float:
    """Check a length of time in seconds."""
    try:
        sound = not isinstance(value, bool) and math.isfinite(value) and value > 0
    except OverflowError:
        sound = False
    except TypeError:
        message = f"{name} must be a number of seconds, not {value!r}"
        raise TypeError(message) from None
    if not sound:
        message = f"{name} must be a finite number of seconds greater than 0, not {value!r}"
        raise ValueError(message)
    return float(value)


def check_lease(name: str, value: float) -> float:
    """Check the length of a lease in seconds."""
    checked = check_seconds(name, value)
    if checked < MIN_LEASE:
        message = (
            f"{name} must be at least {MIN_LEASE} seconds, not {value!r}: "
            "a lease ends 2 ms and 1% early for its owner, because clocks drift"
        )
        raise ValueError(message)
    if checked > MAX_LEASE:
        message = f"{name} must be at most {MAX_LEASE:,.0f} seconds, not {value!r}"
        raise ValueError(message)
    return checked


def check_min_hold(value: float | None, max_hold: float, owner: str | None) -> float:
    """Check the shortest time for which a key is kept; None is 0."""
    if value is None:
        return 0.0
    checked = check_seconds("min_hold", value)
    if checked > MAX_MIN_HOLD:
        message = f"min_hold must be at most {MAX_MIN_HOLD:,.0f} seconds (a week), not {value!r}"
        raise ValueError(message)
    if checked > max_hold:
        message = f"min_hold must not be more than max_hold: {value!r} seconds are more than {max_hold:g}"
        raise ValueError(message)
    if owner is not None:
        message = (
            "min_hold needs a private owner, so leave out owner: locks that share one hold the key together, "
            "and would not keep it from each other"
        )
        raise ValueError(message)
    return checked


def check_linger(value: float | None, owner: str | None, min_hold: float | None) -> float:
    """Check for how long a key is kept after its release; None is 0."""
    if value is None:
        return 0.0
    checked = check_seconds("linger", value)
    if owner is not None:
        message = "linger needs a private owner, so leave out owner: locks that share one re-enter it anyway"
        raise ValueError(message)
    if min_hold is not None:
        message = "linger lets this process have the key again at once, which min_hold forbids: leave one of them out"
        raise ValueError(message)
    return checked


def check_may_linger(traits: Traits, *, blocking: bool, wakes: bool) -> None:
    """Check that a key which lingers is given up in time, and that others get it then."""
    if not blocking:
        message = "linger is for Lock only: nothing could release an AsyncLock once its event loop has stopped"
        raise ValueError(message)
    if not wakes:
        message = f"linger needs a store that wakes waiters: at {traits.location} others would seldom get the key"
        raise ValueError(message)


def check_expires(traits: Traits) -> None:
    """Check that a store ends what a release with `min_hold` leaves there."""
    if not traits.expires:
        message = (
            f"min_hold needs a store that ends leases by itself, which {traits.location} does not: "
            "a process that tries once would not get the key again"
        )
        raise ValueError(message)


def check_permits(value: int) -> int:
    """Check how many may hold a key."""
    if type(value) is not int:
        message = f"permits must be an int, not {value!r}"
        raise TypeError(message)
    if not 1 <= value <= MAX_PERMITS:
        message = f"permits must be from 1 to {MAX_PERMITS}, not {value!r}: more holds take several keys"
        raise ValueError(message)
    return value


def check_timeout(value: float | None) -> float | None:
    """Check a timeout in seconds; None and -1 mean forever, 0 is one try."""
    if value is None or value == -1:
        return None
    if value == 0 and value is not False:
        return 0.0
    try:
        return check_seconds("timeout", value)
    except ValueError:
        message = f"timeout must be 0 or more seconds, or None to wait forever, not {value!r}"
        raise ValueError(message) from None


def check_callback(name: str, value: T) -> T:
    """Check that something can be called, and need not be awaited, or is None."""
    if value is not None and not callable(value):
        message = f"{name} must be callable, or None, not {value!r}"
        raise TypeError(message)
    if suspends(value):
        message = f"{name} must be a plain function, not an `async def`: it is called, not awaited"
        raise TypeError(message)
    return value


def check_switch(name: str, value: bool) -> bool:  # noqa: FBT001 - what it checks
    """Check that something is True or False."""
    if not isinstance(value, bool):
        message = f"{name} must be True or False, not {value!r}"
        raise TypeError(message)
    return value


OF_LOCK_ONLY: Final = frozenset({"owner", "min_hold", "linger"})
"""Settings that other locks, and an adoption, do not have."""


def no_such_setting(names: Iterable[str]) -> TypeError:
    """Say that there is no such argument, or that only `Lock` has it."""
    name = next(iter(names))
    hint = ": that is for Lock(...)" if name in OF_LOCK_ONLY else ""
    return TypeError(f"got an unexpected keyword argument {name!r}{hint}")


def not_copied(lock: object) -> TypeError:
    """Say why a lock is neither copied nor pickled, and what to do instead."""
    kind = type(lock).__name__
    what = "keys" if "Multi" in kind else "key"
    return TypeError(
        f"{kind} can't be copied or pickled: send the store URL and the {what}, and create a new {kind} from them"
    )


class Own(Enum):
    """The default of an argument that means "the timeout that the lock was made with"."""

    TIMEOUT = "the lock's own"

    def __repr__(self) -> str:
        """Return what `help` shows as the default."""
        return f"<{self.value}>"


def wait_time(own: float | None, timeout: float | Own | None, *, blocking: bool) -> float | None:
    """Seconds to wait, from `threading.Lock.acquire`'s arguments."""
    if blocking is not True and blocking is not False:
        message = f"blocking must be True or False, not {blocking!r}: the seconds to wait are acquire(timeout=...)"
        raise TypeError(message)
    if timeout is Own.TIMEOUT:
        return own if blocking else 0.0
    if not blocking and timeout != -1:
        message = "can't specify a timeout for a non-blocking call"
        raise ValueError(message)
    if not blocking:
        return 0.0
    return check_timeout(timeout)


def check_store(store: object, make: str) -> None:
    """Check that something can be a store (`isinstance` with its protocol takes fifty times as long)."""
    if isinstance(store, type):
        message = f"expected a store, not the class {store.__name__}: create an instance, or use caslock.{make}(url)"
        raise TypeError(message)
    if not all(hasattr(store, name) for name in ("get", "put_if_version", "invalidate", "traits")):
        message = (
            f"{type(store).__name__} is not a store (it lacks get, put_if_version, invalidate or traits): "
            f"create one with caslock.{make}(url), which also takes a client, or with a class in caslock.stores"
        )
        raise TypeError(message)


def suspends(verb: object) -> bool:
    """Whether a function is an ``async def`` (as `inspect` has it, which takes 10 ms to import)."""
    code = getattr(verb, "__code__", None)
    return bool(getattr(code, "co_flags", 0) & _COROUTINE)


def check_owner(owner: str | None) -> str | None:
    """Check the name of an owner; None: a private one."""
    if owner == "":
        message = "owner must not be empty: leave it out for a private one"
        raise ValueError(message)
    return None if owner is None else check_text("owner", owner, MAX_OWNER_BYTES)


def check_text(name: str, value: str, most: int) -> str:
    """Check an owner or a note, which may take `most` bytes as JSON in UTF-8."""
    if not isinstance(value, str):
        message = f"{name} must be a str, not {type(value).__name__}"
        raise TypeError(message)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the {name} contains a lone surrogate, at index {error.start}") from None
    size = json_size(value)
    if size > most:
        message = f"{name} is too long: {size:,} bytes as JSON in UTF-8, at most {most:,}"
        raise ValueError(message)
    return value


def check_retry(retry: Retry | tuple[int, int]) -> Retry:
    """Check how often to retry."""
    try:
        checked = Retry(*retry)
    except TypeError:
        message = f"retry must be two numbers, (get, put), not {retry!r}"
        raise TypeError(message) from None
    if not all(times in range(MAX_RETRY + 1) for times in checked):
        message = f"retry must be two numbers from 0 to {MAX_RETRY}, (get, put), not {retry!r}"
        raise ValueError(message)
    return checked
