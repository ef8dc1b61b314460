"""`locked`: a decorator that takes a lock, whose key is made of the arguments, around each call of a function."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, cast
from typing import overload as overload_

from caslock.blocking import Hold, Lock, Semaphore
from caslock.errors import NotHeld
from caslock.key_template import KeyTemplate, named
from caslock.local.settings import Own, no_such_setting, suspends
from caslock.process import fork
from caslock.store import Traits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caslock.aio import AsyncHold, AsyncLock
    from caslock.local.lock import Settings
    from caslock.store import AsyncStore, Store

    AnyStore: TypeAlias = Store | AsyncStore | Callable[[], Store | AsyncStore]

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)
L = TypeVar("L", "Lock", "AsyncLock")
F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound="Hold | AsyncHold")


class Returns(Protocol[B_co]):
    """Decorates a function, which returns something else if the key is busy."""

    @overload_
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | B_co]]: ...

    @overload_
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | B_co]: ...


@overload_
def locked(
    store: AnyStore,
    key: str,
    *,
    timeout: float | Own | None = ...,
    busy: Literal["raise"] = ...,
    permits: int | None = ...,
    **settings: Unpack[Settings[Any]],
) -> Callable[[F], F]: ...


@overload_
def locked(
    store: AnyStore,
    key: str,
    *,
    timeout: float | Own = ...,
    busy: Literal["skip"],
    permits: int | None = ...,
    **settings: Unpack[Settings[Any]],
) -> Returns[None]: ...


@overload_
def locked(
    store: AnyStore,
    key: str,
    *,
    timeout: float | Own = ...,
    busy: Callable[..., Coroutine[Any, Any, B]],
    permits: int | None = ...,
    **settings: Unpack[Settings[Any]],
) -> Returns[B]: ...


@overload_
def locked(
    store: AnyStore,
    key: str,
    *,
    timeout: float | Own = ...,
    busy: Callable[..., B],
    permits: int | None = ...,
    **settings: Unpack[Settings[Any]],
) -> Returns[B]: ...


def locked(
    store: AnyStore,
    key: str,
    *,
    timeout: float | Own | None = Own.TIMEOUT,
    busy: Literal["raise", "skip"] | Callable[..., object] = "raise",
    permits: int | None = None,
    **settings: Unpack[Settings[Any]],
) -> Any:
    """Take a lock around each call of the function that is decorated: ``@locked(store, "invoice:{invoice.id}")``.

    A coroutine function (``async def``) takes an `AsyncLock`, any other function a `Lock`.  One call at a time runs for
    each key; a call inside it for the same key, by the same thread or task, re-enters.

    Args:
        store: a store, or a function that returns one, which is called at each call.  A blocking store serves
            coroutine functions, too.
        key: the key, with arguments by name in braces, as in `str.format`.  Their values are written as `caslock.key`
            writes them, so that different values never make the same key; those of other types need ``!s``, ``!r`` or a
            format, which then has to tell them apart.
        timeout: seconds to wait for the lock.  Default: without limit if `busy` is "raise", otherwise one try.
        busy: what to do if another owner holds the key: "raise" `NotAcquired`; "skip", which returns None; or call a
            function with the same arguments, and return its result.
        permits: how many calls run at a time for each key, over all processes: a `Semaphore` is taken in place of a
            lock, and a call inside a call takes one more permit.
        settings: those of `Lock`: ttl, min_hold, ...

    Raises:
        TypeError, ValueError: when decorating, if an argument is invalid, the function has no argument that the key
            names, or is a generator function (the lock would be released before it runs).

    In the function, `current_hold` returns its hold.  The function raises `LockLost` at its end if the lease was lost
    meanwhile, and whatever acquire and release raise.

    """
    if not callable(busy) and busy not in ("raise", "skip"):
        message = f'busy must be "raise", "skip" or a function that is called with the same arguments, not {busy!r}'
        raise ValueError(message)
    react: Callable[..., object] | None = None
    if busy != "raise":
        react = (lambda *_, **__: None) if isinstance(busy, str) else busy
    if timeout is Own.TIMEOUT:
        timeout = None if react is None else 0.0
    elif timeout is None and react is not None:
        message = 'with timeout=None the lock is waited for without limit, so the key is never busy: leave out "busy"'
        raise ValueError(message)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_function(function)
        name = KeyTemplate(key, function)
        make: Any
        if not _is_coroutine_function(function):
            make = Lock if permits is None else partial(Semaphore, permits=permits)
            return _blocking(function, name, _Locks(make, store, timeout, settings), react)
        from caslock.aio import AsyncLock, AsyncSemaphore  # noqa: PLC0415 - asyncio is only for those who use it

        make = AsyncLock if permits is None else partial(AsyncSemaphore, permits=permits)
        return _asynchronous(function, name, _Locks(make, store, timeout, settings), react)

    return decorate


def _blocking(
    function: Callable[..., Any], name: KeyTemplate, locks: _Locks[Lock], react: Callable[..., object] | None
) -> Callable[..., Any]:
    if suspends(react):
        message = f"{named(function)} is no coroutine function, so busy must be a plain function, not an `async def`"
        raise TypeError(message)

    @wraps(function)
    def guarded(*args: object, **kwargs: object) -> object:
        lock = locks.of(name(args, kwargs))
        if react is None:
            with lock as hold, _Calls(hold):
                return _finished(function, function(*args, **kwargs))
        found = lock.acquire()
        if found is None:
            return react(*args, **kwargs)
        with found as hold, _Calls(hold):
            return _finished(function, function(*args, **kwargs))

    return guarded


def _asynchronous(
    function: Callable[..., Any], name: KeyTemplate, locks: _Locks[AsyncLock], react: Callable[..., object] | None
) -> Callable[..., Any]:
    @wraps(function)
    async def guarded(*args: object, **kwargs: object) -> object:
        lock = locks.of(name(args, kwargs))
        if react is None:
            async with lock as hold:
                with _Calls(hold):
                    return _finished(function, await function(*args, **kwargs))
        found = await lock.acquire()
        if found is None:
            result = react(*args, **kwargs)
            return await cast("Coroutine[Any, Any, object]", result) if suspends(react) else result
        async with found as hold:
            with _Calls(hold):
                return _finished(function, await function(*args, **kwargs))

    return guarded


# Weakly: the context of a task or a timer that outlives the function must not keep its lease renewed.
_current: ContextVar[weakref.ref[Hold | AsyncHold] | None] = ContextVar("caslock.current_hold", default=None)


@overload_
def current_hold() -> Hold | AsyncHold: ...


@overload_
def current_hold(kind: type[H]) -> H: ...


def current_hold(kind: type[object] | None = None) -> Hold | AsyncHold:
    """Return the hold of the function, decorated with `locked`, in which this is called; of several, the innermost.

    For its fence, and for `ensure_held` between the steps of long work.  Tasks that the function starts, and
    `asyncio.to_thread`, find it too; other threads do not.  It is an `AsyncHold` in a coroutine function.

    Args:
        kind: what it has to be, for type checkers: `Hold`, `AsyncHold`, and with ``permits=`` also `SemaphoreHold` or
            `AsyncSemaphoreHold`.

    Raises:
        NotHeld: this is called outside of such a function.
        TypeError: the hold is of another kind.

    """
    reference = _current.get()
    hold = None if reference is None else reference()
    if hold is None:
        message = "this was not called by a function that is decorated with caslock.locked"
        raise NotHeld(message)
    if kind is not None and not isinstance(hold, kind):
        own = type(hold).__name__
        message = f"the hold of this function is of the class {own}: write caslock.current_hold(caslock.{own})"
        raise TypeError(message)
    return hold


class _Calls:
    """The block in which a function runs: there `current_hold` returns its hold."""

    __slots__ = ("_hold", "_token")

    def __init__(self, hold: Hold | AsyncHold) -> None:
        self._hold = hold

    def __enter__(self) -> None:
        self._token = _current.set(weakref.ref(self._hold))

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # a coroutine that is closed as garbage ends in another context
            _current.reset(self._token)


class _Locks(Generic[L]):
    """The locks of one function, by key: a call inside a call finds the lock that it has to re-enter."""

    def __init__(
        self,
        make: Callable[..., L],
        store: AnyStore,
        timeout: float | None,
        settings: Mapping[str, object],
    ) -> None:
        """Check the settings, and the store if it is known."""
        if "linger" in settings:  # each call has a lock of its own, which nobody acquires again
            raise no_such_setting(["linger"])
        self._late: bool = callable(store) and not hasattr(store, "put_if_version")
        if self._late and suspends(store):
            message = "store must be a store or a plain function that returns one, not an `async def`"
            raise TypeError(message)
        if self._late:
            _check_late(store)
        self._store: object = store
        self._make: Callable[..., L] = make
        self._settings: dict[str, object] = {"timeout": timeout, **settings}
        self._locks: weakref.WeakValueDictionary[str, L] = weakref.WeakValueDictionary()  # those of calls that go on
        make(_StoreToCome() if self._late else store, "key", **self._settings)

    def of(self, key: str) -> L:
        """Return the lock of a key."""
        store = cast("Callable[[], object]", self._store)() if self._late else self._store
        with fork.guard:
            lock: L | None = self._locks.get(key)
            if lock is None or lock._state.runtime.home is not store:
                lock = self._locks[key] = self._make(store, key, **self._settings)
            return lock


def _check_late(store: object) -> None:
    """Refuse a function that can't be called without arguments, such as one that needs the ``self`` of a method."""
    try:
        inspect.signature(cast("Callable[..., object]", store)).bind()
    except TypeError as error:
        message = (
            f"the function that gives the store is called without arguments, but {error}; "
            "if the store is an attribute of self, use `with caslock.Lock(self.store, ...)` in the method"
        )
        raise TypeError(message) from None
    except ValueError:  # a callable of C, which does not tell
        pass


class _StoreToCome:
    """Stands for a store that is known at the call, while the settings are checked."""

    traits = Traits("a store to come")
    get = put_if_version = invalidate = None


def _check_function(function: object) -> None:
    """Refuse what a lock can't be held around."""
    if isinstance(function, (staticmethod, classmethod)):
        message = f"put @caslock.locked below @{type(function).__name__}, next to the function"
        raise TypeError(message)
    if isinstance(function, type) or not callable(function):
        message = f"@caslock.locked decorates a function, not {function!r}"
        raise TypeError(message)
    each = (function, type(function).__call__)
    if any(map(inspect.isgeneratorfunction, each)) or any(map(inspect.isasyncgenfunction, each)):
        raise _too_early(function, "is a generator function")


_LAZY: Final = (map, filter, zip, enumerate)


def _finished(function: Callable[..., object], result: object) -> object:
    """Return `result`, or raise TypeError if some of it would run after the release."""
    pending = result
    if isinstance(result, (AbstractContextManager, AbstractAsyncContextManager)):
        pending = getattr(result, "gen", result)  # of one that is made of a generator function
    if isinstance(pending, (Coroutine, Generator)):
        pending.close()
    lazy = isinstance(pending, _LAZY) or type(pending).__module__ == "itertools"
    if lazy or isinstance(pending, (Awaitable, Generator, AsyncGenerator)):
        raise _too_early(function, f"returned a {type(result).__name__}")
    return result


def _too_early(function: object, why: str) -> TypeError:
    return TypeError(
        f"{named(function)} {why}, which runs after the lock would have been released: "
        "take the lock inside it, with a `with` block"
    )


def _is_coroutine_function(function: Callable[..., object]) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
