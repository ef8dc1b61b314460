"""The two stores.  `requests` has their verbs, `session` the connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.process.loop_end import PerLoop
from caslock.store import Traits
from caslock.stores.hazelcast.requests import Verbs
from caslock.stores.hazelcast.session import Session
from caslock.stores.hazelcast.target import target_of
from caslock.stores.shared.loop_thread import LoopThread
from caslock.stores.shared.verbs import AsyncVerbs, BlockingVerbs

if TYPE_CHECKING:
    from caslock.stores.hazelcast.requests import Verb
    from caslock.stores.hazelcast.target import Target

T = TypeVar("T")

_LAG: Final = 1.1
"""Seconds by which an entry may outlast its ttl: see `requests`."""


def _traits(target: Target) -> Traits:
    return Traits(target.location, fences=False, expiry_lag=_LAG, request_timeout=target.timeout)


class HazelcastStore(BlockingVerbs):
    """A `Store` in a map of a Hazelcast cluster, version 5; safe to share between threads and across a fork.

    Leases end by the clocks of the members.  There are no fences: a version is a random number, which never comes
    again.  Hazelcast prefers to answer rather than to be right: when a cluster is split, each part may give the same
    lock to another holder.

    A thread of the store's own runs the client, which is one for asyncio, from the first request until `close`.
    """

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        """Keep the entries in ``hazelcast://host:port,host:port/map?cluster=dev``; no I/O yet.

        The hosts are members of one cluster: if one can't be reached, the next is asked.  `timeout` (2 s) is how long a
        verb may take, also as ``?timeout=``.  Raises ValueError or TypeError for bad arguments.
        """
        target = target_of(url, timeout)
        self._verbs: Verbs = Verbs(target.location)
        self._thread = LoopThread("caslock-hazelcast", partial(Session, target))
        self.traits: Traits = _traits(target)

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`: a listener, on the same connection."""
        self._thread.run(lambda session: session.wait_while(self._verbs, key, version, timeout))

    def close(self) -> None:
        """Close the connection, and end the thread.  A later request begins another, and ends it."""
        self._thread.end()

    def _run(self, verb: Verb[T], /) -> T:
        return self._thread.run(lambda session: session.run(verb))


class AsyncHazelcastStore(AsyncVerbs):
    """The same for asyncio.  The connection belongs to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        """See `HazelcastStore`."""
        self._target = target_of(url, timeout)
        self._verbs: Verbs = Verbs(self._target.location)
        self._sessions = PerLoop(partial(Session, self._target))
        self.traits: Traits = _traits(self._target)

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `HazelcastStore.wait_while`."""
        await self._sessions.here().wait_while(self._verbs, key, version, timeout)

    async def aclose(self) -> None:
        """Close the connection of the running loop; the next request opens one again."""
        await self._sessions.here().close()

    async def _run(self, verb: Verb[T], /) -> T:
        return await self._sessions.here().run(verb)
