"""The two stores.  `requests` has their verbs, `servers` the connections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.process.loop_end import ConnectionsPerLoop
from caslock.store import Traits
from caslock.stores.nats.failures import Failures
from caslock.stores.nats.requests import Verbs
from caslock.stores.nats.servers import Servers
from caslock.stores.nats.target import target_of
from caslock.stores.shared.connections import run
from caslock.stores.shared.links import SocketLink, StreamLink
from caslock.stores.shared.verbs import AsyncVerbs, BlockingVerbs

if TYPE_CHECKING:
    from caslock.stores.shared.verbs import Verb

T = TypeVar("T")

_LAG: Final = 1.5
"""Seconds by which an entry may outlast its ttl: NATS counts whole seconds, and looks four times a second."""


class NatsStore(BlockingVerbs):
    """A `Store` in a key-value bucket of NATS JetStream 2.11 or newer; safe to share between threads and across a fork.

    The first put makes the bucket if there is none.  Several hosts are servers of one cluster: if one can't be reached,
    another is asked.  A version is a sequence of the bucket's stream.
    """

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        """Keep the entries in ``nats://user:password@host:port,host:port/bucket``; no I/O yet.

        ``nats://token@host`` has a token instead, and ``?creds=`` names a file with a JWT and a seed, or with a seed
        only (extra ``nats``).  ``natss://`` is TLS: ``?cacert=`` names the file of the authority, ``?cert=`` and
        ``?key=`` those of the client.  The bucket is ``caslock`` if there is no path; ``?replicas=3`` is
        how many servers keep one that does not exist yet.  `timeout` (2 s) is how long a verb may take, also as
        ``?timeout=``.  Raises ValueError or TypeError for bad arguments.
        """
        target = target_of(url, timeout)
        self._verbs: Verbs = Verbs(target.bucket)
        self._servers = Servers(target, self._verbs, Failures(target.location), SocketLink)
        self.traits: Traits = Traits(target.location, expiry_lag=_LAG, request_timeout=target.timeout)

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`: a subscription, on a connection that nobody else uses."""
        run(self._servers.wait_while(key, version, timeout))

    def close(self) -> None:
        """Close the idle connections.  A later request opens one, and closes it."""
        self._servers.end()

    def _run(self, verb: Verb[T], /) -> T:
        return run(self._servers.run(verb))


class AsyncNatsStore(AsyncVerbs):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        """See `NatsStore`."""
        target = target_of(url, timeout)
        self._verbs: Verbs = Verbs(target.bucket)
        self._loops = ConnectionsPerLoop(partial(Servers, target, self._verbs, Failures(target.location), StreamLink))
        self.traits: Traits = Traits(target.location, expiry_lag=_LAG, request_timeout=target.timeout)

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `NatsStore.wait_while`."""
        await self._loops.here().wait_while(key, version, timeout)

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._loops.close()

    async def _run(self, verb: Verb[T], /) -> T:
        return await self._loops.here().run(verb)
