"""The law of this file: bad input gets a clear error before any request is made."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.claim import Retry
from caslock.record import json_size

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

MAX_KEY: Final = 1024
MAX_OWNER_BYTES: Final = 512
MAX_NOTE_BYTES: Final = 1024
MAX_RETRY: Final = 100
_COROUTINE: Final = 0x80  # inspect.CO_COROUTINE


def seconds(name: str, value: float) -> float:
    """Check a length of time in seconds."""
    try:
        sound = not isinstance(value, bool) and math.isfinite(value) and value > 0
    except OverflowError:
        sound = False
    except TypeError:
        message = f"{name} must be a number of seconds, not {value!r}"
        raise TypeError(message) from None
    if not sound:
        message = f"{name} must be finite and more than 0 seconds, not {value!r}"
        raise ValueError(message)
    return float(value)


def waiting(value: float | None) -> float | None:
    """Check a timeout in seconds; None is for ever, 0 one try."""
    return value if value is None or (value == 0 and value is not False) else seconds("timeout", value)


def callback(name: str, value: T) -> T:
    """Check that something can be called, and need not be awaited, or is None."""
    if value is not None and not callable(value):
        message = f"{name} must be callable, or None, not {value!r}"
        raise TypeError(message)
    if suspends(value):
        message = f"{name} is called, not awaited: it must be no `async def`, but it may start a task"
        raise TypeError(message)
    return value


def switch(name: str, value: bool) -> bool:  # noqa: FBT001 - what it checks
    """Check that something is True or False."""
    if not isinstance(value, bool):
        message = f"{name} must be True or False, not {value!r}"
        raise TypeError(message)
    return value


def no_settings(settings: Mapping[str, object]) -> None:
    """Check that nobody means to set what locks that are handed over have of their own."""
    if settings:
        message = f"locks that are handed over keep their own settings: leave out {', '.join(settings)}"
        raise TypeError(message)


class Own(Enum):
    """Stands for "the timeout that the lock was made with"."""

    TIMEOUT = "the lock's own"


def wait_time(own: float | None, timeout: float | Own | None, *, blocking: bool) -> float | None:
    """Seconds to wait, from `threading.Lock.acquire`'s arguments."""
    if timeout is Own.TIMEOUT:
        return own if blocking else 0.0
    if not blocking and timeout != -1:
        message = "a timeout can't be given with blocking=False, which is one try"
        raise ValueError(message)
    if not blocking:
        return 0.0
    return None if timeout == -1 else waiting(timeout)


def has_verbs(store: object) -> bool:
    """Whether something can be a store (`isinstance` with its protocol takes fifty times as long)."""
    return all(hasattr(store, name) for name in ("get", "put_if_version", "invalidate", "traits"))


def suspends(verb: object) -> bool:
    """Whether a function is an ``async def`` (as `inspect` has it, which takes 10 ms to import)."""
    code = getattr(verb, "__code__", None)
    return bool(getattr(code, "co_flags", 0) & _COROUTINE)


def key_of(key: str) -> str:
    """Check a key."""
    if not isinstance(key, str):
        message = f"key must be a str, not {type(key).__name__}"
        raise TypeError(message)
    if not 1 <= len(key) <= MAX_KEY:
        message = f"key must be 1 to {MAX_KEY:,} characters long, not {len(key):,}"
        raise ValueError(message)
    return _encodable("key", key)


def text(name: str, value: str, most: int) -> str:
    """Check an owner or a note, which may take `most` bytes as JSON."""
    if not isinstance(value, str):
        message = f"{name} must be a str, not {type(value).__name__}"
        raise TypeError(message)
    size = json_size(value)
    if size > most:
        message = f"{name} is too long: {size:,} bytes as JSON, at most {most:,}"
        raise ValueError(message)
    return _encodable(name, value)


def _encodable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name} can't be encoded as UTF-8 (a lone surrogate at {error.start})"
        raise ValueError(message) from None
    return text


def retries(retry: Retry | tuple[int, int]) -> Retry:
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
