"""The law of this file: between client and server, bytes are lost, late or doubled as decided, and never garbled.

``with FaultProxy("localhost", 6379, decide) as proxy:`` and clients connect to ``("127.0.0.1", proxy.port)``.  What a
client sends in one go is one request (it waits for the answer before it sends the next), and `decide` is asked once for
each.  It knows nothing of what the bytes mean but how a Redis connection introduces itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import socket
import struct
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

MOST_CONNECTIONS: Final = 2_000
CHUNK: Final = 1 << 16
PATIENCE: Final = 10.0

Kind = Literal[
    "pass", "drop request", "drop reply", "hold request", "hold reply", "duplicate", "cut before", "cut after"
]


class Passage(NamedTuple):
    """What becomes of one request and its reply."""

    kind: Kind = "pass"
    seconds: float = 0.0
    """How long it is held; for a duplicate: how much later the second copy arrives."""


PASS: Final = Passage()

FAULTS: Final[dict[Kind, float]] = {
    "drop request": 0.01,
    "drop reply": 0.03,
    "hold request": 0.04,
    "hold reply": 0.03,
    "duplicate": 0.02,
    "cut before": 0.005,
    "cut after": 0.005,
}
"""How likely each fault is, for one request."""


def chance(seed: int | str, longest: float, faults: dict[Kind, float] = FAULTS) -> Callable[[bytes], Passage]:
    """Decide by dice: each kind as likely as `faults` says; nothing is held for more than `longest` seconds."""
    dice = random.Random(seed)  # noqa: S311 - chance need not be secret here
    kinds, odds = ["pass", *faults], [1.0 - sum(faults.values()), *faults.values()]

    def decide(_request: bytes) -> Passage:
        kind = dice.choices(kinds, odds)[0]
        held = kind.startswith("hold") or (kind == "duplicate" and dice.random() < 1 / 2)
        return Passage(kind, dice.uniform(0.02, longest) if held else 0.0)

    return decide


class FaultProxy:
    """A TCP proxy on the loopback address, in a thread of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        decide: Callable[[bytes], Passage] = lambda _: PASS,
        *,
        listen: str = "127.0.0.1",
        told: Callable[[bytes, Passage], object] = lambda _request, _passage: None,
    ) -> None:
        """Stand before the server at `host`:`port`; nothing is opened yet.

        `told` hears of each fault, from the proxy's thread, before it strikes.
        Raises ValueError where `listen` is not a loopback address: nobody else is to come through here.
        """
        if not ipaddress.ip_address(listen).is_loopback:
            raise ValueError(f"a fault proxy listens on a loopback address, not on {listen}")
        self.decide = decide
        self.counts = Counter[str]()
        """Requests by what became of them."""
        self.port = 0
        self._upstream, self._listen, self._told = (host, port), listen, told
        self._loop = asyncio.new_event_loop()
        self._tasks = set[asyncio.Task[None]]()
        self._links = set[_Link]()
        self._thread = threading.Thread(target=self._serve, name="caslock-fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        """Begin to listen, on a free port."""
        listener = socket.create_server(
            (self._listen, 0), family=socket.AF_INET6 if ":" in self._listen else socket.AF_INET, backlog=500
        )
        listener.settimeout(0.0)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Cut all connections; what is still held never arrives."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    @property
    def requests(self) -> int:
        """How many requests have come."""
        return sum(self.counts.values())

    @property
    def faults(self) -> int:
        """How many of them did not simply pass."""
        return self.requests - self.counts["pass"]

    def settle(self, seconds: float) -> bool:
        """Let all that is held arrive, for up to `seconds`; tells whether nothing is under way any more."""
        end = time.monotonic() + seconds
        while any(link.held for link in list(self._links)):
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        accepting = self._loop.create_task(self._accept())
        try:
            self._loop.run_forever()
        finally:
            tasks = [accepting, *self._tasks]
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            for link in list(self._links):
                link.close()
            self._listener.close()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            if len(self._links) >= MOST_CONNECTIONS:
                client.close()
                continue
            self.spawn(_Link(self, client).run())

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` beside the rest."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def enter(self, link: _Link) -> None:
        """Know a connection."""
        self._links.add(link)

    def leave(self, link: _Link) -> None:
        """Forget a connection."""
        self._links.discard(link)

    async def connect(self) -> socket.socket:
        """Open a connection to the server."""
        family, kind, number, _, address = (await self._loop.getaddrinfo(*self._upstream, type=socket.SOCK_STREAM))[0]
        upstream = socket.socket(family, kind, number)
        try:
            upstream.settimeout(0.0)
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.wait_for(self._loop.sock_connect(upstream, address), PATIENCE)
        except BaseException:
            upstream.close()
            raise
        return upstream

    def judge(self, request: bytes) -> Passage:
        """Decide what becomes of a request."""
        passage = self.decide(request)
        self.counts[passage.kind] += 1
        if passage.kind != "pass":
            self._told(request, passage)
        return passage


class _Link:
    """One client's connection, and its counterpart to the server."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self.held = 0  # requests that are to arrive later
        self._proxy, self._client = proxy, client
        self._server: socket.socket | None = None
        self._introductions: list[bytes] = []
        self._silent = False  # towards the client
        self._deaf = False  # to the client
        self._hold_reply = 0.0
        client.settimeout(0.0)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        proxy.enter(self)

    async def run(self) -> None:
        """Carry requests until either side hangs up."""
        loop = asyncio.get_running_loop()
        replies: asyncio.Task[None] | None = None
        try:
            self._server = await self._proxy.connect()
            replies = loop.create_task(self._replies(self._server))
            while request := await loop.sock_recv(self._client, CHUNK):
                if not self._deaf and not await self._carry(request, self._server):
                    break
        except (OSError, TimeoutError):
            pass
        finally:
            if replies is not None:
                replies.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await replies
            self.close()

    async def _carry(self, request: bytes, server: socket.socket) -> bool:
        """Carry one request; False: the connection is at its end."""
        loop = asyncio.get_running_loop()
        kind, seconds = self._proxy.judge(request)
        if kind == "cut before":
            self._reset()
            return False
        if kind == "drop request":  # a lost packet would be sent again: what comes after it is lost as well
            self._deaf = self._silent = True
            return True
        if kind in ("drop reply", "cut after"):
            self._silent = True
        if kind == "hold reply":
            self._hold_reply = seconds
        if kind == "hold request":  # it arrives even if the client has gone meanwhile
            self.held += 1
            try:
                await asyncio.sleep(seconds)
                await loop.sock_sendall(server, request)
            finally:
                self.held -= 1
            return True
        if kind == "duplicate":
            self._proxy.spawn(self._again([*self._introductions, request], seconds))
        if _introduces(request):
            self._introductions = [*self._introductions[-8:], request]
        await loop.sock_sendall(server, request)
        if kind == "cut after":
            await asyncio.sleep(0.002)
            self._reset()
            return False
        return True

    async def _replies(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while reply := await loop.sock_recv(server, CHUNK):
                seconds, self._hold_reply = self._hold_reply, 0.0
                if seconds:
                    await asyncio.sleep(seconds)
                if not self._silent:
                    await loop.sock_sendall(self._client, reply)
            self._client.shutdown(socket.SHUT_RDWR)  # so the server's goodbye is heard

    async def _again(self, requests: list[bytes], seconds: float) -> None:
        """Send a copy over a connection of its own, whose replies nobody reads."""
        loop = asyncio.get_running_loop()
        self._proxy.enter(self)
        self.held += 1
        try:
            await asyncio.sleep(seconds)
            other = await self._proxy.connect()
            with other:
                for request in requests:
                    await loop.sock_sendall(other, request)
                    with contextlib.suppress(TimeoutError):  # it is applied before its reply
                        await asyncio.wait_for(loop.sock_recv(other, CHUNK), 1.0)
        except (OSError, TimeoutError):
            pass
        finally:
            self.held -= 1
            if self._client.fileno() < 0 and not self.held:
                self._proxy.leave(self)

    def _reset(self) -> None:
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        """Hang up on both sides."""
        self._client.close()
        if self._server is not None:
            self._server.close()
        if not self.held:
            self._proxy.leave(self)


def _introduces(request: bytes) -> bool:
    """Whether a Redis connection says who it is, and which database it means."""
    words = request[:40].upper()
    return words.startswith(b"*") and any(word in words for word in (b"\nAUTH\r", b"\nHELLO\r", b"\nSELECT\r"))
