"""The two stores.  `requests` has their verbs, `members` the connections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

from caslock.process.loop_end import ConnectionsPerLoop
from caslock.store import Traits
from caslock.stores.etcd.failures import Failures
from caslock.stores.etcd.members import Members
from caslock.stores.etcd.requests import Verbs
from caslock.stores.etcd.target import target_of
from caslock.stores.shared.connections import run
from caslock.stores.shared.links import SocketLink, StreamLink
from caslock.stores.shared.verbs import AsyncVerbs, BlockingVerbs

if TYPE_CHECKING:
    from caslock.stores.shared.verbs import Verb

T = TypeVar("T")

_LAG: Final = 3.0
"""Seconds by which an entry may outlast its ttl: etcd counts whole seconds, at least 2, and looks twice a second."""


class EtcdStore(BlockingVerbs):
    """A `Store` in etcd 3.4 or newer; safe to share between threads and across a fork.

    It speaks to etcd's own JSON gateway, on the port of its clients.  Several endpoints are members of one cluster: if
    one can't be reached, or has no leader, another is asked.  A version is etcd's mod revision.

    A restart of etcd, and a change of its leader, begin every lease anew: an entry may then last for up to twice its
    ttl.  It never ends early.
    """

    def __init__(self, url: str, *, prefix: str = "", timeout: float | None = None) -> None:
        """Keep the entries in ``etcd://user:password@host:port,host:port``; no I/O yet.

        ``etcds://`` is TLS: ``?cacert=`` names the file of the authority, ``?cert=`` and ``?key=`` those of the client.
        `prefix` is put before every key, also as ``?prefix=``.  `timeout` (2 s) is how long a verb may take, also as
        ``?timeout=``.  Raises ValueError or TypeError for bad arguments.
        """
        target = target_of(url, prefix, timeout)
        self._verbs: Verbs = Verbs(target.prefix)
        self._members = Members(target, Failures(target.location), SocketLink)
        self.traits: Traits = Traits(target.location, expiry_lag=_LAG, request_timeout=target.timeout)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "") -> Self:
        """Make a store; see the class."""
        return cls(url, prefix=prefix)

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`: a watch, on a connection of its own."""
        run(self._members.wait_while(self._verbs, key, version, timeout))

    def close(self) -> None:
        """Close the idle connections.  A later request opens one, and closes it."""
        self._members.end()

    def _run(self, verb: Verb[T], /) -> T:
        return run(self._members.run(verb))


class AsyncEtcdStore(AsyncVerbs):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, url: str, *, prefix: str = "", timeout: float | None = None) -> None:
        """See `EtcdStore`."""
        target = target_of(url, prefix, timeout)
        self._verbs: Verbs = Verbs(target.prefix)
        self._loops = ConnectionsPerLoop(partial(Members, target, Failures(target.location), StreamLink))
        self.traits: Traits = Traits(target.location, expiry_lag=_LAG, request_timeout=target.timeout)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "") -> Self:
        """Make a store; see the class."""
        return cls(url, prefix=prefix)

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `EtcdStore.wait_while`."""
        await self._loops.here().wait_while(self._verbs, key, version, timeout)

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._loops.close()

    async def _run(self, verb: Verb[T], /) -> T:
        return await self._loops.here().run(verb)
