"""A Redis Cluster: a request goes to the node that has its slot, and follows where that node sends it."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis import exceptions
from redis.crc import key_slot

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.failures import FAILOVER
from caslock.stores.redis.requests import Request
from caslock.stores.redis.server import Address
from caslock.stores.shared.connections import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.stores.redis.server import Server
    from caslock.stores.redis.wire import Reply

T = TypeVar("T")
C = TypeVar("C", bound=Connections[Any])

_MOST_HOPS: Final = 5


class Cluster:
    """The connections to all nodes, and which node has which slot, as far as we know."""

    def __init__(self, server: Server, new_node: Callable[[Address], Connections[Any]]) -> None:
        """Know the nodes that the client names; open nothing yet."""
        self._server, self._new_node = server, new_node
        self._nodes: dict[Address, Connections[Any]] = {}
        self._slots: dict[int, Address] = {}
        self._stale = True
        self._silent = set[Address]()
        """The nodes that gave no answer when they were last asked for the map."""

    async def ask(self, request: Request[T]) -> T:
        """Find the node of a request's key, and what it answers: one request timeout, and one more to load the map."""
        slot = key_slot(request.name)
        if self._stale or slot not in self._slots:
            await self._load()
        if slot not in self._slots:
            missing = exceptions.ClusterDownError(f"no node has slot {slot}")
            raise self._server.failures.of(missing, sent=False)
        address = self._slots[slot]
        ends = monotonic() + self._server.patience
        asked = request
        for _ in range(_MOST_HOPS):
            node, within = self._node(address), ends - monotonic()
            try:
                return await (node.wait if asked.seconds else node.ask)(asked, within)
            except StoreError as error:
                why = error.__cause__
                if isinstance(why, exceptions.MovedError):
                    address = self._slots[slot] = _address(why, address)
                    self._stale = True
                    asked = request
                elif isinstance(why, exceptions.AskError):
                    address, asked = _address(why, address), request.asking()
                elif isinstance(why, exceptions.TryAgainError) and request.alone() != request:
                    request = asked = request.alone()
                else:  # the node may be gone, or a replica by now: the others know
                    self._stale |= isinstance(why, FAILOVER) or (
                        isinstance(error, StoreUnavailable) and why is not None
                    )
                    raise
        self._stale = True
        turning = exceptions.ClusterDownError(f"slot {slot} is being migrated, and the nodes redirect to each other")
        raise self._server.failures.of(turning, sent=False)

    wait = ask

    def ask_blocking(self, request: Request[T]) -> T:
        """Do what `ask` does, for code that blocks; see `SocketConnections.ask_blocking`."""
        return run(self.ask(request))

    async def server_id(self) -> None:
        """Do nothing: a cluster has no name of its own."""

    async def nodes(self) -> list[Connections[Any]]:
        """Return all nodes that have slots."""
        await self._load()
        return [self._node(address) for address in sorted(set(self._slots.values()))]

    def end(self) -> None:
        """See `Connections.end`."""
        for node in list(self._nodes.values()):
            node.end()

    def _node(self, address: Address) -> Connections[Any]:
        return self._nodes.get(address) or self._nodes.setdefault(address, self._new_node(address))

    async def _load(self) -> None:
        """Ask one node after the other which of them has which slots, until one answers."""
        unknown: StoreError | None = None
        known = dict.fromkeys([*self._slots.values(), *self._server.nodes])
        addresses = sorted(known, key=self._silent.__contains__)  # those that gave no answer come last
        ends = monotonic() + self._server.patience
        for address in addresses:
            left = ends - monotonic()
            share = left if address == addresses[-1] else left / 2  # the others need some of it, too
            request = Request((b"CLUSTER", b"SLOTS"), b"", partial(_slots, address))
            try:
                self._slots = await self._node(address).ask(request, share)
            except StoreError as error:
                if isinstance(error, StoreUnavailable):
                    self._silent.add(address)
                    error.sent = False  # it was the map that got no answer
                unknown = error
            else:
                self._silent.discard(address)
                self._stale = False
                return
        if unknown:
            raise unknown


def connections_to(server: Server, new: Callable[..., C]) -> Cluster | C:
    """Open nothing yet; `new` makes the connections to one server, as `Connections` does."""
    return Cluster(server, partial(new, server)) if server.nodes else new(server)


def _address(where: Any, asked: Address) -> Address:  # noqa: ANN401 - redis-py's error is untyped
    return str(where.host) or asked[0], int(where.port)  # no host: the one that was asked


def _slots(asked: Address, reply: Reply) -> dict[int, Address]:
    slots: dict[int, Address] = {}
    for each in reply if isinstance(reply, list) else ():
        match each:
            case [int(first), int(last), [host, int(port), *_], *_]:
                name = host.decode() if isinstance(host, bytes) and host else asked[0]
                slots.update(dict.fromkeys(range(first, last + 1), (name, port)))
    return slots
