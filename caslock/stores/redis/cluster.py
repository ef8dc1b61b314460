"""A Redis Cluster: a request goes to the node that has its slot, and follows where that node sends it.

Written once, for asyncio.  Code that blocks runs it to its end in one step, because its nodes never suspend.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from redis import exceptions
from redis.crc import key_slot

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.requests import SLOTS, Request, Wait
from caslock.stores.redis.server import Address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from caslock.stores.redis.server import Server
    from caslock.stores.redis.wire import Reply


class Node(Protocol):
    """The connections to one node."""

    def ask(self, request: Request, within: float | None = None) -> Awaitable[Reply]:
        """See `Connections.ask`."""

    def wait(self, wait: Wait, within: float | None = None) -> Awaitable[Reply]:
        """See `Connections.wait`."""

    async def close(self) -> None:
        """See `Connections.close`."""


N = TypeVar("N", bound=Node)
T = TypeVar("T")

_MOST_HOPS: Final = 5


class AsyncCluster(Generic[N]):
    """The connections to all nodes, and which node has which slot, as far as we know."""

    def __init__(self, server: Server, new_node: Callable[[Server, Address], N]) -> None:
        """Know the nodes that the client was told of; open nothing yet."""
        self._server, self._new_node = server, new_node
        self._nodes: dict[Address, N] = {}
        self._slots: dict[int, Address] = {}
        self._stale = True
        self._silent = set[Address]()
        """The nodes that gave no answer when they were last asked for the map."""

    async def ask(self, asked: Request | Wait) -> Reply:
        """Find the node of a request's key, and what it answers: one request timeout, and one more to load the map."""
        request = asked.put if isinstance(asked, Wait) else asked
        slot = key_slot(request.name)
        if self._stale or slot not in self._slots:
            await self._load()
        if slot not in self._slots:
            missing = exceptions.ClusterDownError(f"no node has slot {slot}")
            raise self._server.failures.of(missing, sent=False)
        address = self._slots[slot]
        ends = monotonic() + self._server.patience
        for _ in range(_MOST_HOPS):
            node, within = self._node(address), ends - monotonic()
            try:
                reply = await (node.wait(asked, within) if isinstance(asked, Wait) else node.ask(asked, within))
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
        turning = exceptions.ClusterDownError(f"slot {slot} is being migrated, and the nodes redirect to each other")
        raise self._server.failures.of(turning, sent=False)

    wait = ask

    async def nodes(self) -> list[N]:
        """Give all nodes that have slots."""
        await self._load()
        return [self._node(address) for address in sorted(set(self._slots.values()))]

    async def close(self) -> None:
        """See `Connections.close`."""
        for node in list(self._nodes.values()):
            await node.close()

    def _node(self, address: Address) -> N:
        return self._nodes.get(address) or self._nodes.setdefault(address, self._new_node(self._server, address))

    async def _load(self) -> None:
        """Ask one node after the other which of them has which slots, until one answers."""
        unknown: StoreError | None = None
        known = dict.fromkeys([*self._slots.values(), *self._server.nodes])
        addresses = sorted(known, key=self._silent.__contains__)  # those that gave no answer come last
        ends = monotonic() + self._server.patience
        for address in addresses:
            left = ends - monotonic()
            share = left if address == addresses[-1] else left / 2  # the others need some of it, too
            try:
                reply = await self._node(address).ask(SLOTS, share)
            except StoreUnavailable as error:
                self._silent.add(address)
                unknown = error
                continue
            self._silent.discard(address)
            if isinstance(reply, list):
                self._slots = _slots(reply, address)
                self._stale = False
                return
            if isinstance(reply, Exception):
                unknown = self._server.failures.of(reply)
        if unknown:
            if isinstance(unknown, StoreUnavailable):
                unknown.sent = False  # it was the map that got no answer
            raise unknown


class Cluster:
    """The same for code that blocks."""

    def __init__(self, server: Server) -> None:
        """See `AsyncCluster`."""
        self._cluster = AsyncCluster(server, _BlockingNode)

    def ask(self, asked: Request | Wait) -> Reply:
        """See `AsyncCluster.ask`."""
        return _finish(self._cluster.ask(asked))

    wait = ask

    def nodes(self) -> list[Connections]:
        """See `AsyncCluster.nodes`."""
        return [node.connections for node in _finish(self._cluster.nodes())]

    def close(self) -> None:
        """See `Connections.close`."""
        _finish(self._cluster.close())


class _BlockingNode:
    """Makes of what blocks a coroutine that never suspends."""

    def __init__(self, server: Server, address: Address) -> None:
        self.connections = Connections(server, address)

    async def ask(self, request: Request, within: float | None = None) -> Reply:
        return self.connections.ask(request, within)

    async def wait(self, wait: Wait, within: float | None = None) -> Reply:
        return self.connections.wait(wait, within)

    async def close(self) -> None:
        self.connections.close()


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    raise RuntimeError("a blocking connection suspended")


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
