"""What the lock objects of both APIs have in common: how they are made, and what they refuse."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    NoReturn,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from caslock.errors import LockLost
from caslock.local import tickets
from caslock.local.hold import Holding
from caslock.local.holds import Holds
from caslock.local.lock_state import LockState
from caslock.local.multi import MultiState
from caslock.local.settings import (
    MAX_NOTE_BYTES,
    MIN_LEASE,
    Own,
    check_callback,
    check_expires,
    check_lease,
    check_linger,
    check_may_linger,
    check_min_hold,
    check_owner,
    check_permits,
    check_retry,
    check_switch,
    check_text,
    check_timeout,
    no_such_setting,
    not_copied,
    wait_time,
)
from caslock.local.several import check_keys, check_locks, check_stores
from caslock.local.with_blocks import WithBlocks
from caslock.protocol.attempt import LockSettings, Retry
from caslock.protocol.lease import NEVER
from caslock.protocol.transfer import read_ticket
from caslock.store import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator
    from inspect import Signature

    from tenacity.wait import WaitBaseT

    from caslock.local.read_write import ReadWriteState
    from caslock.local.semaphore import SemaphoreState
    from caslock.local.several import Keys
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime

S = TypeVar("S")
H = TypeVar("H", bound=Holding)
M = TypeVar("M", bound=Holds[Any])
B_co = TypeVar("B_co", covariant=True)


class State(Protocol[B_co]):
    """What `LockState` and `MultiState` have in common, of which an acquire returns a `B_co`."""

    runtime: Runtime
    committed: dict[Any, Any]

    def begin(self, make: Callable[[LockState, Attempt], Any], caller: object = None) -> Any:  # noqa: ANN401 - a hold, or several
        """Begin an acquire."""

    def acquire(self, begun: Any, timeout: float | None) -> Coroutine[object, object, B_co]:  # noqa: ANN401 - what `begin` has returned
        """Acquire what was begun."""

    def undo(self, begun: Any, error: BaseException) -> Coroutine[object, object, None]:  # noqa: ANN401 - as above
        """Leave nothing of it behind."""

    def newest_hold(self, me: object = None) -> object:
        """Return the newest hold of `me` (None: this thread or task)."""


class Adopting(TypedDict, Generic[H], total=False):
    """The settings of an adopted hold; explained at `Lock.adopt`."""

    ttl: float
    auto_renew: bool
    max_hold: float | None
    on_lost: Callable[[H], object] | None
    note: str
    retry: Retry | tuple[int, int]


class CommonSettings(Adopting[H], total=False):
    """What all locks can be given besides store, key and timeout; explained at `Lock`."""

    poll: WaitBaseT | None


class Settings(CommonSettings[H], total=False):
    """What a `MultiLock` and `locked` can give a `Lock` besides."""

    owner: str | None
    min_hold: float | None


def with_defaults(given: CommonSettings[Any]) -> CommonSettings[Any]:
    """Return settings with the defaults of those that are left out; raises TypeError for any other name."""
    if unknown := given.keys() - DEFAULTS:
        raise no_such_setting(sorted(unknown))
    return {**DEFAULTS, **given}


def _checked(
    given: CommonSettings[Any], owner: str | None = None, min_hold: float | None = None, linger: float | None = None
) -> LockSettings:
    on_lost, poll = given["on_lost"], given["poll"]
    kept = min_hold, linger
    values = given["ttl"], owner, given["auto_renew"], given["max_hold"], *kept, given["note"], given["retry"]
    try:
        settings = _remembered(*values)
    except TypeError:  # also of one that can't be hashed
        settings = None
    settings = settings or _values(*values)
    if on_lost is None and poll is None:
        return settings
    return settings._replace(on_lost=check_callback("on_lost", on_lost), poll=check_callback("poll", poll))


def _values(  # noqa: PLR0917 - it is called by nobody else, and by position it costs less
    ttl: float,
    owner: str | None,
    auto_renew: bool,  # noqa: FBT001 - as above
    max_hold: float | None,
    min_hold: float | None,
    linger: float | None,
    note: str,
    retry: Retry | tuple[int, int],
) -> LockSettings:
    """Check what can be compared."""
    longest = NEVER if max_hold is None else check_lease("max_hold", max_hold)
    return LockSettings(
        ttl=check_lease("ttl", ttl),
        owner=check_owner(owner),
        auto_renew=check_switch("auto_renew", auto_renew),
        max_hold=longest,
        min_hold=check_min_hold(min_hold, longest, owner),
        linger=check_linger(linger, owner, min_hold),
        note=check_text("note", note, MAX_NOTE_BYTES),
        retry=check_retry(retry),
    )


_remembered = lru_cache(maxsize=64, typed=True)(_values)  # most locks of a program have the same


class Shown:
    """The signature of a class as `help` shows it: what users may give, each setting by its name."""

    def __get__(self, _: object, kind: type) -> Signature:
        """Show each setting in place of ``**settings``."""
        import inspect  # noqa: PLC0415 - seldom used, and the import takes long

        made_by = cast("Any", kind).__init__
        _, *parameters = inspect.signature(made_by).parameters.values()
        if made_by.__module__.startswith("caslock."):  # else it is that of a user's subclass
            names = cast("Any", kind)._settings.__annotations__
            of_lock = inspect.signature(SingleLock.__init__).parameters
            *parameters, last = parameters
            if last.name == "settings":
                parameters += [each for name, each in of_lock.items() if name in names]
            else:
                parameters.append(last)
        return inspect.Signature(parameters)


class LockObject:
    """Base of all lock objects.  Refuses copying and pickling."""

    _runtime: staticmethod[[object], Runtime]
    _settings: ClassVar[type] = CommonSettings
    __signature__: ClassVar[Shown] = Shown()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would count as the same holder."""
        raise not_copied(self)


class OneKey(LockObject):
    """A lock on one key."""

    _state: LockState

    def __init__(self, state: LockState, timeout: float | None) -> None:
        self._state = state
        self._timeout = check_timeout(timeout)
        self._blocks: WithBlocks[Any] = WithBlocks()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} at {self._state.runtime.store.traits.location}>"

    @property
    def key(self) -> str:
        """The key."""
        return self._state.key

    @property
    def owner(self) -> str:
        """The owner in the record while this lock is held."""
        return self._state.owner


class Adoptable(OneKey, Generic[S, H]):
    """A key whose holds can be handed over and adopted."""

    _has_permits: ClassVar[bool]

    @classmethod
    def _adoption(cls, store: S, text: str, given: Adopting[H], make: Callable[[LockState, Attempt], H]) -> H:
        """Check what `adopt` is given, and return a hold for `tickets.adopt`; no request is sent."""
        if unknown := given.keys() - Adopting.__annotations__:
            raise no_such_setting(sorted(unknown))
        ticket = read_ticket(text)
        settings = _checked({**DEFAULTS, "ttl": ticket.ttl, **given})
        if "max_hold" not in given:
            if ticket.max_hold < MIN_LEASE:
                message = f"could not adopt {ticket.key!r}: its max_hold has run out"
                error = LockLost(message)
                error.key = ticket.key
                raise error
            settings = settings._replace(max_hold=ticket.max_hold)
        runtime = cls._runtime(store)
        if bool(ticket.permits) is not cls._has_permits:
            kind = "Semaphore" if ticket.permits else "Lock"
            message = f"the ticket for {ticket.key!r} is from a {kind}: use {kind}.adopt() or Async{kind}.adopt()"
            raise ValueError(message)
        if not ticket.permits:
            return tickets.begin(LockState(runtime, ticket.key, settings), make, ticket)
        from caslock.local.semaphore import SemaphoreState  # noqa: PLC0415 - seldom used

        return tickets.begin(SemaphoreState(runtime, ticket.key, settings, ticket.permits), make, ticket)


class SingleLock(Adoptable[S, H]):
    """A lock on one key of a store of type `S`."""

    _is_blocking: ClassVar[bool]
    _has_permits = False

    def __init__(
        self,
        store: S,
        key: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = None,
        owner: str | None = None,
        auto_renew: bool = True,
        max_hold: float | None = None,
        min_hold: float | None = None,
        linger: float | None = None,
        on_lost: Callable[[H], object] | None = None,
        note: str = "",
        retry: Retry | tuple[int, int] = Retry(),
        poll: WaitBaseT | None = None,
    ) -> None:
        """Create the lock; no request is sent.

        Args:
            store: where the lock lives, from `connect` or a store class.
            key: 1 to 1,024 characters, any Unicode.
            ttl: seconds the lease lasts unless it is renewed, at least 0.01.
            timeout: seconds to wait for the lock; None (or -1) forever, 0 for one try.  If the store does not answer,
                up to two request timeouts are added (``store.traits.request_timeout``).
            owner: a name of your own, at most 512 bytes as JSON: every Lock with it re-enters.  None: private to this
                object.  If a process that shares the owner dies, its hold ends only once no other process has held the
                key as that owner for a full ttl, or by `force_release`.
            auto_renew: renew the lease in the background, when a third of it has passed.
            max_hold: seconds after which its lease ends, renewed or not, at least 0.01.  None: no bound.
            min_hold: seconds after the acquire in which nobody gets the key (not even this object), even if it is
                released sooner, and even if the process then ends: a short job that several machines begin at about the
                same time runs once.  The release leaves a record that expires (`Record.kept`), and does not wait.  At
                most ``max_hold``, and a week; not with `owner`.  The lease of a holder that dies ends after `ttl`, as
                ever.  Not at a store whose ``traits.expires`` is False.  None: the key is free at its release.
            linger: seconds for which this process may keep the key after a release, although nobody holds it.  If this
                object acquires it again by then, that takes no request, and its fence is the one of before.  After that
                time, or as soon as another `Lock` of this process wants the key, it is released; other processes have
                to wait that long.  A process that has seen others want the key within the last minute does not keep it,
                and none keeps it beyond a third of `ttl`.  Meanwhile `locked()` is true.  Only for `Lock`, at a store
                that wakes waiters, and not with `owner` or `min_hold`.  None: each release frees the key at once.
            on_lost: called once with the hold when the lease is lost, from a background thread (in asyncio:
                from the event loop, which it must not block).  At most 8 such threads run at one time.  Each loss is
                logged too, as a WARNING of the logger ``caslock``, and an exception that it raises as an ERROR.  It is
                called, not awaited.
            note: free text stored in the record, for operators; at most 1,024 bytes as JSON.
            retry: how many times an unanswered get and an unanswered put are repeated.
            poll: a tenacity wait strategy for the pauses between attempts; default: jittered, 5 ms
                doubling to 0.5 s, and from 5 ms again whenever the key has changed hands (plus 1 ms for each process
                that was seen to have it).

        Raises:
            ValueError, TypeError: an argument is invalid.

        """
        runtime = type(self)._runtime(store)
        check_key(key)
        if min_hold is not None:
            check_expires(runtime.store.traits)
        if linger is not None:
            wakes = runtime.watching is not None or runtime.queueing is not None
            check_may_linger(runtime.store.traits, blocking=self._is_blocking, wakes=wakes)
        given = CommonSettings(
            ttl=ttl, auto_renew=auto_renew, max_hold=max_hold, on_lost=on_lost, note=note, retry=retry, poll=poll
        )
        super().__init__(LockState(runtime, key, _checked(given, owner, min_hold, linger)), timeout)

    def _with_timeout(self, timeout: float | Own | None) -> Self:
        """Return this lock with another timeout: what one of the two holds, both do."""
        other = object.__new__(type(self))
        other.__dict__ |= {**self.__dict__, "_timeout": wait_time(self._timeout, timeout, blocking=True)}
        return other


_lock_defaults = cast("Any", SingleLock.__init__).__kwdefaults__
DEFAULTS: Final = cast("CommonSettings[Any]", {name: _lock_defaults[name] for name in CommonSettings.__annotations__})
"""Those of the settings that all locks have, as `Lock` declares them."""


class SharedLock(Adoptable[S, H]):
    """A key of a store of type `S` that several may hold."""

    _state: SemaphoreState
    _has_permits = True

    def __init__(
        self, store: S, key: str, permits: int, *, timeout: float | None = None, **settings: Unpack[CommonSettings[H]]
    ) -> None:
        """Create the semaphore; no request is sent.

        Args:
            store: where it lives, as for `Lock`.
            key: as for `Lock`; a `Lock` of the same key and this semaphore exclude each other.
            permits: how many may hold the key at a time, over all processes, 1 to 48.  All that use the key have to
                name the same number: an acquire with another one raises `StoreError` while somebody holds the key.
            timeout: as for `Lock`.
            settings: ``ttl``, ``auto_renew``, ``max_hold``, ``on_lost``, ``note``, ``retry`` and ``poll``, as for
                `Lock`.  A holder that dies blocks its permit for one ``ttl``; where many hold the key, a record may
                have no room for a ``note``.  There is no ``owner``, ``min_hold`` or ``linger``.

        Raises:
            ValueError, TypeError: an argument is invalid.

        """
        from caslock.local.semaphore import SemaphoreState  # noqa: PLC0415 - seldom used

        runtime = type(self)._runtime(store)
        check_key(key)
        checked = _checked(with_defaults(settings))
        super().__init__(SemaphoreState(runtime, key, checked, check_permits(permits)), timeout)

    @property
    def permits(self) -> int:
        """How many may hold the key at a time."""
        return self._state.permits


class ReadWrite(LockObject, Generic[S, H]):
    """A key of a store of type `S` that many may read, or one write."""

    def __init__(
        self, store: S, key: str, *, timeout: float | None = None, **settings: Unpack[CommonSettings[H]]
    ) -> None:
        """Create both sides; no request is sent.

        Args:
            store: where it lives, as for `Lock`.
            key: as for `Lock`; a `Lock` of the same key and this one exclude each other.
            timeout: as for `Lock`, for either side.
            settings: ``ttl``, ``auto_renew``, ``max_hold``, ``on_lost``, ``note``, ``retry`` and ``poll``, as for
                `Lock`.  A reader or writer that dies blocks others for one ``ttl``; where many hold the key, a record
                may have no room for a ``note``.  There is no ``owner``, ``min_hold`` or ``linger``.

        Raises:
            ValueError, TypeError: an argument is invalid.

        """
        from caslock.local.read_write import sides  # noqa: PLC0415 - seldom used

        runtime = type(self)._runtime(store)
        check_key(key)
        self._sides(*sides(runtime, key, _checked(with_defaults(settings))), check_timeout(timeout))

    @abstractmethod
    def _sides(self, reads: ReadWriteState, writes: ReadWriteState, timeout: float | None) -> None:
        """Make the two sides, each of its own API."""


L = TypeVar("L", bound=LockObject)


class SeveralLocks(LockObject, Generic[S, L, H, M]):
    """Locks of the types `L`, of several keys, as one."""

    _lock_types: tuple[type[L], ...]
    _hold_type: type[M]
    _settings = Settings

    @overload
    def __init__(
        self,
        store: S,
        keys: Keys | Iterator[str],
        *,
        timeout: float | None = None,
        **settings: Unpack[Settings[H]],
    ) -> None: ...

    @overload
    def __init__(self, store: Iterable[L], *, timeout: float | None = None) -> None: ...

    def __init__(
        self,
        store: S | Iterable[L],
        keys: Keys | Iterator[str] | None = None,
        *,
        timeout: float | None = None,
        **settings: Unpack[Settings[H]],
    ) -> None:
        """Lock several keys of one store, or existing locks of any stores: ``MultiLock([lock, semaphore, rw.read])``.

        Duplicates count once, also of a semaphore.  The settings are those of `Lock`; existing locks keep their own,
        except for `timeout`: that of the MultiLock is one deadline for all keys together.
        """
        if "linger" in settings:
            raise no_such_setting({"linger": None})
        if keys is None:
            locks: list[Any] = list(check_locks(store, self._lock_types))
            if settings:
                raise TypeError(f"existing locks keep their own settings: leave out {', '.join(settings)}")
        else:
            lock: type[Any] = self._lock_types[0]
            locks = [lock(store, key, **settings) for key in check_keys(keys)]
        makes = {each._state: each._make for each in locks}
        self._state: MultiState[H, M] = MultiState(makes, self._hold_type, of_locks=keys is None)
        self._timeout = check_timeout(timeout)
        self._blocks: WithBlocks[Any] = WithBlocks()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self.keys))}>"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, sorted as they are acquired."""
        return tuple(state.key for state in self._state.states)


class SeveralStores(OneKey, Generic[S, H]):
    """A lock on one key at several independent stores of type `S`."""

    def __init__(
        self, stores: Iterable[S], key: str, *, timeout: float | None = None, **settings: Unpack[CommonSettings[H]]
    ) -> None:
        """Create the lock; no request is sent.

        Args:
            stores: at least 3 stores on servers that fail independently of each other, of any kind; an odd number,
                because 4 survive the loss of no more of them than 3 do.  All processes have to name the same ones.
            key: as for `Lock`.
            timeout: seconds to wait for the lock; None (or -1) forever, 0 for one try at each store.  If a majority of
                the stores does not answer, up to two request timeouts are added (the longest of the stores counts).
            settings: ``ttl``, ``auto_renew``, ``max_hold``, ``on_lost``, ``note``, ``retry`` and ``poll``, as for
                `Lock`.  ``on_lost`` is called when fewer than a majority of the leases are left.  ``poll`` gives the
                pauses between attempts; default: random, 5 ms doubling to 0.5 s, and longer than the last attempt has
                taken if contenders have split the votes.  There is no ``owner``, ``min_hold`` or ``linger``.

        Raises:
            ValueError, TypeError: an argument is invalid.

        """
        from caslock.local.quorum import QuorumState, place_of  # noqa: PLC0415 - a fifth of `import caslock`, and seldom used

        nodes = check_stores(stores, type(self)._runtime)
        check_key(key)
        checked = _checked(with_defaults(settings))
        runtime = type(self)._runtime(place_of(nodes))
        super().__init__(QuorumState(runtime, key, checked, nodes), timeout)
