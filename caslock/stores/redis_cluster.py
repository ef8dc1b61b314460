"""The law of this file: a request goes to the node that has its slot, and follows where that node sends it.

Written once for both APIs, as a generator of hops: whoever drives it sends each request to its node, and sends back the
answer or throws in the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from redis import exceptions
from redis.crc import key_slot

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.redis_line import Lines
from caslock.stores.redis_links import Links
from caslock.stores.redis_requests import Request, Wait
from caslock.stores.redis_wire import Reply, packed

if TYPE_CHECKING:
    from collections.abc import Generator

    from caslock.stores.redis_server import Address, Server

_MOST_HOPS: Final = 5
_SLOTS: Final = Request(packed(b"CLUSTER", b"SLOTS"), b"", None)


class Hop(NamedTuple):
    """What is to be asked next, and of which node."""

    address: tuple[str, int]
    request: Request | Wait


Hops: TypeAlias = "Generator[Hop, Reply, Reply]"


class Map:
    """Which node has which slot, as far as we know."""

    def __init__(self, server: Server) -> None:
        """Know the nodes that the client was told of."""
        self._server = server
        self._slots: dict[int, Address] = {}
        self._stale = True

    def hops(self, asked: Request | Wait) -> Hops:
        """Find the node of a request's key, and what it answers."""
        request = asked.put if isinstance(asked, Wait) else asked
        slot = key_slot(request.name)
        if self._stale or slot not in self._slots:
            yield from self._load()
        if slot not in self._slots:
            missing = exceptions.ClusterDownError(f"no node has slot {slot}")
            raise self._server.failure(missing, sent=False)
        address = self._slots[slot]
        for _ in range(_MOST_HOPS):
            try:
                reply = yield Hop(address, asked)
            except StoreError as error:  # the node may be gone, or a replica by now: the others know
                self._stale = self._stale or error.__cause__ is not None  # none: it was we who could not wait
                raise
            if isinstance(reply, exceptions.MovedError):
                address = self._slots[slot] = _address(reply, address)
                self._stale = True
                asked = asked if isinstance(asked, Wait) else request
            elif isinstance(reply, exceptions.AskError):
                address, asked = _address(reply, address), request.asking()
            elif isinstance(reply, exceptions.TryAgainError) and request.alone:
                request = asked = request.alone
            else:
                return reply
        self._stale = True
        turning = exceptions.ClusterDownError(f"slot {slot} is on the move, and each node points to another")
        raise self._server.failure(turning, sent=False)

    def _load(self) -> Generator[Hop, Reply, None]:
        unknown: StoreError | None = None
        for address in dict.fromkeys([*self._slots.values(), *self._server.nodes]):
            try:
                reply = yield Hop(address, _SLOTS)
            except StoreUnavailable as error:
                unknown = error
                continue
            if isinstance(reply, list):
                self._slots = _slots(reply, address)
                self._stale = False
                return
            if isinstance(reply, Exception):
                unknown = self._server.failure(reply)
        if unknown:
            if isinstance(unknown, StoreUnavailable):
                unknown.sent = False  # it was the map that got no answer
            raise unknown


class Cluster:
    """The connections to all nodes, for code that blocks."""

    def __init__(self, server: Server) -> None:
        """Open nothing yet."""
        self._server, self._map = server, Map(server)
        self._nodes: dict[Address, Links] = {}

    def ask(self, request: Request) -> Reply:
        """See `Links.ask`."""
        return self._drive(self._map.hops(request))

    def wait(self, wait: Wait) -> Reply:
        """See `Links.wait`."""
        return self._drive(self._map.hops(wait))

    def close(self) -> None:
        """See `Links.close`."""
        for links in list(self._nodes.values()):
            links.close()

    def _drive(self, hops: Hops) -> Reply:
        try:
            hop = next(hops)
            while True:
                links = self._nodes.get(hop.address)
                if links is None:
                    links = self._nodes.setdefault(hop.address, Links(self._server, hop.address))
                try:
                    asked = hop.request
                    reply = links.ask(asked) if isinstance(asked, Request) else links.wait(asked)
                except StoreError as error:
                    hop = hops.throw(error)
                else:
                    hop = hops.send(reply)
        except StopIteration as done:
            found: Reply = done.value
            return found


class AsyncCluster:
    """The same for asyncio."""

    def __init__(self, server: Server) -> None:
        """Open nothing yet."""
        self._server, self._map = server, Map(server)
        self._nodes: dict[Address, Lines] = {}

    async def ask(self, request: Request) -> Reply:
        """See `Links.ask`."""
        return await self._drive(self._map.hops(request))

    async def wait(self, wait: Wait) -> Reply:
        """See `Links.wait`."""
        return await self._drive(self._map.hops(wait))

    async def close(self) -> None:
        """See `Links.close`."""
        for lines in list(self._nodes.values()):
            await lines.close()

    async def _drive(self, hops: Hops) -> Reply:
        try:
            hop = next(hops)
            while True:
                lines = self._nodes.get(hop.address)
                if lines is None:
                    lines = self._nodes.setdefault(hop.address, Lines(self._server, hop.address))
                try:
                    asked = hop.request
                    reply = await (lines.ask(asked) if isinstance(asked, Request) else lines.wait(asked))
                except StoreError as error:
                    hop = hops.throw(error)
                else:
                    hop = hops.send(reply)
        except StopIteration as done:
            found: Reply = done.value
            return found


def _address(where: Any, asked: Address) -> Address:  # noqa: ANN401 - redis-py's error is untyped
    return str(where.host) or asked[0], int(where.port)  # no host: the one that was asked


def _slots(reply: list[Reply], asked: Address) -> dict[int, Address]:
    slots: dict[int, Address] = {}
    for each in reply:
        match each:
            case [int(first), int(last), [host, int(port), *_], *_]:
                name = host.decode() if isinstance(host, bytes) and host else asked[0]
                slots.update(dict.fromkeys(range(first, last + 1), (name, port)))
    return slots
