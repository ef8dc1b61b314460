"""A TCP proxy that drops, delays and duplicates requests and replies as it is told.

``with FaultProxy("localhost", 6379, decide) as proxy:`` and clients connect to ``("127.0.0.1", proxy.port)``.  What a
client sends in one go is one request, because it waits for the answer before it sends the next; `decide` is asked once
for each.  The proxy understands no protocol, except the handshake of a Redis connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

MOST_CONNECTIONS: Final = 2_000
BACKLOG: Final = 500
MOST_QUEUED: Final = 16
CHUNK: Final = 1 << 16
PATIENCE: Final = 30.0
QUEUED: Final = 0.05
"""Seconds within which what has waited behind a request that was held is read."""

Kind = Literal[
    "pass",
    "drop request",
    "drop reply",
    "hold request",
    "hold reply",
    "duplicate",
    "cut before",
    "cut after",
    "cut reply",  # the reply breaks off in the middle
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


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """Give a loopback port that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextlib.contextmanager
def foreign_port(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Give a loopback port of a server that speaks another protocol: `answer` makes its answer to what it receives."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while received := self.request.recv(65_536):
                    self.request.sendall(answer(received))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="caslock-foreign-server", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def unreachable_port() -> Iterator[int]:
    """Give a loopback port that neither accepts nor refuses connections, as behind a dead route.

    Its queue of connections is full, so the system drops further ones.  Raises OSError if it does not.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(MOST_QUEUED):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(address)
            except TimeoutError:
                yield address[1]
                return
        raise OSError(f"{MOST_QUEUED} connections fit into the queue of a socket that listens for none")


def chance(seed: int | str, longest: float, faults: dict[Kind, float] = FAULTS) -> Callable[[bytes], Passage]:
    """Decide by chance: each kind as likely as `faults` says; nothing is held for more than `longest` seconds."""
    dice = random.Random(seed)  # noqa: S311 - chance need not be secret here
    kinds: list[Kind] = ["pass", *faults]
    odds = [1.0 - sum(faults.values()), *faults.values()]

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
        arrived: Callable[[bytes, Passage], object] = lambda _request, _passage: None,
    ) -> None:
        """Prepare a proxy of the server at `host`:`port`; nothing is opened yet.

        `told` is called for each fault, in the proxy's thread, before it happens, and `arrived` when a request that was
        held, or a copy of one, was sent to the server: on a busy machine that may be later than was decided.
        Raises ValueError if `listen` is not a loopback address, because nobody else may come through the proxy.
        """
        if not ipaddress.ip_address(listen).is_loopback:
            raise ValueError(f"a fault proxy listens on a loopback address, not on {listen}")
        self.decide = decide
        self.counts: Counter[str] = Counter()
        """Requests by what became of them."""
        self.accepted: int = 0
        """How many connections have been accepted."""
        self.port: int = 0
        self.arrived: Callable[[bytes, Passage], object] = arrived
        """Is told of each request that was held, or a copy of one, as it is sent on."""
        self._upstream, self._listen, self._told = (host, port), listen, told
        self._loop = asyncio.new_event_loop()
        self._tasks = set[asyncio.Task[None]]()
        self._links = set[_Link]()
        self._thread = threading.Thread(target=self._loop.run_forever, name="caslock-fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        """Begin to listen, on a free port."""
        self._listener = self._bound(0)
        self.port = self._listener.getsockname()[1]
        self._thread.start()
        self._ask(self._open())
        return self

    def __exit__(self, *error: object) -> None:
        """Cut all connections; what is still held never arrives."""
        self._ask(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._listener.close()
        self._loop.close()

    @property
    def requests(self) -> int:
        """How many requests have come."""
        return sum(self.counts.values())

    @property
    def faults(self) -> int:
        """How many of them did not simply pass."""
        return self.requests - self.counts["pass"]

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Cut all connections and refuse new ones, as a server that is down does; then accept again."""
        self._ask(self._shut())
        try:
            yield
        finally:
            self._ask(self._open())

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return sum(link.open for link in list(self._links))

    def settle(self, seconds: float) -> bool:
        """Let all that is held arrive, for up to `seconds`; tells whether nothing is under way any more."""
        end = time.monotonic() + seconds
        while any(link.held for link in list(self._links)):
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def _bound(self, port: int) -> socket.socket:
        """Give a socket that has the port; until it listens, connections are refused."""
        bound = socket.socket(socket.AF_INET6 if ":" in self._listen else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._listen, port))
        except BaseException:
            bound.close()
            raise
        return bound

    def _ask(self, work: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._listener, backlog=BACKLOG)

    async def _shut(self) -> None:
        with contextlib.suppress(NotImplementedError):  # on Windows
            self._loop.remove_reader(self._listener)  # accept nobody
        for _ in range(2):  # who was accepted just now gets a link; a server that is closed would forget the socket
            await asyncio.sleep(0)
        self._server.close()  # which closes the listener too
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._links):
            link.close()
        await asyncio.sleep(0)  # the transports close now
        self._listener = self._bound(self.port)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._links) >= MOST_CONNECTIONS:
            writer.close()
            return
        self.accepted += 1
        link = _Link(self, reader, writer)
        self._links.add(link)
        self.spawn(link.run())

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` beside the rest."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self, link: _Link) -> None:
        """Remove a connection, if nothing of it is held any more."""
        if not link.open and not link.held:
            self._links.discard(link)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the server."""
        return await asyncio.wait_for(asyncio.open_connection(*self._upstream), PATIENCE)

    def judge(self, request: bytes, *, late: bool) -> Passage:
        """Decide what becomes of a request; `late`: it may have waited behind one that was held, which is told too."""
        passage = self.decide(request)
        self.counts[passage.kind] += 1
        if passage.kind != "pass" or late:
            self._told(request, passage if passage.kind != "pass" else Passage("hold request"))
        return passage


class _Link:
    """One client's connection, and its counterpart to the server."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.held: int = 0  # requests that are to arrive later
        self._proxy, self._reader, self._client = proxy, reader, client
        self._server: asyncio.StreamWriter | None = None
        self._introductions: list[bytes] = []
        self._silent = False  # towards the client
        self._deaf = False  # to the client
        self._hold_reply = 0.0
        self._cut_reply = False
        self._late_until = 0.0  # until then, what comes may have waited behind a request that was held

    @property
    def open(self) -> bool:
        """Whether the client is connected."""
        return not self._client.transport.is_closing()

    async def run(self) -> None:
        """Carry requests until either side hangs up."""
        replies: asyncio.Task[None] | None = None
        try:
            server_reader, self._server = await self._proxy.connect()
            replies = asyncio.create_task(self._replies(server_reader))
            while request := await self._reader.read(CHUNK):
                if not self._deaf and not await self._carry(request, self._server):
                    break
        except (OSError, TimeoutError):
            pass
        finally:
            if replies is not None:
                replies.cancel()
            self.close()

    async def _carry(self, request: bytes, server: asyncio.StreamWriter) -> bool:
        """Carry one request; False: the connection is at its end."""
        late = time.monotonic() < self._late_until
        kind, seconds = self._proxy.judge(request, late=late)
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
        if kind == "cut reply":
            self._cut_reply = True
        if kind == "hold request":  # it arrives even if the client has gone meanwhile
            self.held += 1
            try:
                await asyncio.sleep(seconds)
                await _send(server, request)
                self._proxy.arrived(request, Passage(kind))
            finally:
                self.held -= 1
            self._late_until = time.monotonic() + QUEUED
            return True
        if kind == "duplicate":
            self._proxy.spawn(self._again([*self._introductions, request], seconds))
        if _introduces(request):
            self._introductions = [*self._introductions[-8:], request]
        await _send(server, request)
        if kind == "cut after":
            await asyncio.sleep(0.002)
            self._reset()
            return False
        return True

    async def _replies(self, server: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while reply := await server.read(CHUNK):
                seconds, self._hold_reply = self._hold_reply, 0.0
                if seconds:
                    await asyncio.sleep(seconds)
                if self._cut_reply:
                    await _send(self._client, reply[: len(reply) // 2])
                    break
                if not self._silent:
                    await _send(self._client, reply)
        self._client.close()  # so the server's goodbye is heard

    async def _again(self, requests: list[bytes], seconds: float) -> None:
        """Send a copy over a connection of its own, whose replies nobody reads."""
        self.held += 1
        try:
            await asyncio.sleep(seconds)
            reader, writer = await self._proxy.connect()
            with contextlib.closing(writer):
                for request in requests:
                    await _send(writer, request)
                    self._proxy.arrived(request, Passage("duplicate"))
                    with contextlib.suppress(TimeoutError):  # it is applied before its reply
                        await asyncio.wait_for(reader.read(CHUNK), 1.0)
        except (OSError, TimeoutError):
            pass
        finally:
            self.held -= 1
            self._proxy.leave(self)

    def _reset(self) -> None:
        client: socket.socket = self._client.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.transport.abort()

    def close(self) -> None:
        """Hang up on both sides."""
        for writer in (self._client, self._server):
            if writer is not None:
                writer.close()
        self._proxy.leave(self)


async def _send(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    writer.write(chunk)
    await writer.drain()


def _introduces(request: bytes) -> bool:
    """Whether a Redis connection says who it is, and which database it means."""
    words = request[:40].upper()
    return words.startswith(b"*") and any(word in words for word in (b"\nAUTH\r", b"\nHELLO\r", b"\nSELECT\r"))
