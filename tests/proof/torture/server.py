"""Stops, kills and fills a server of our own while it is tortured."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import redis

from caslock.verify.run import Action, Run
from tests.proof.torture.etcd_leases import RESTARTED
from tests.proof.torture.ttls import without_ttl

FORGETS_NOTHING: Final = ("etcd", "mysql", "nats", "postgresql", "zookeeper")

MOST: Final = 200_000
"""Items that fill a memcached server; it should be a small one, started with ``-M``, so that it evicts nothing."""

_SIZES: Final = range(150, 700, 50)


class OwnServer(Protocol):
    """A server that may be stopped and killed, as `tests.support.servers.Server`."""

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing is answered."""

    def resume(self) -> None:
        """Let it run again."""

    def restart(self) -> None:
        """Kill it, and start it again at the same place; it may forget what it knew, and that is announced."""


def freeze(run: Run, server: OwnServer, thaw: Callable[[], object]) -> None:
    """Stop a server for a while; `thaw` notes that it goes on."""
    run.note("freeze", note=urlsplit(run.plan.url).scheme)
    try:
        server.pause()
        run.sleep(run.dice.uniform(0.02, 1.5 * run.plan.ttls[1]))
    finally:  # an interrupt must not leave it stopped
        server.resume()
        thaw()


@dataclass(frozen=True)
class TroubledServer:
    """Disturbs a server at the given paces, in seconds; 0: never."""

    server: OwnServer
    pause_every: float = 10.0
    restart_every: float = 30.0
    squeeze_every: float = 20.0

    def actions(self, run: Run) -> Iterator[Action]:
        """Give what is done to it, for `torture`."""
        yield Action(self.pause_every, lambda: freeze(run, self.server, lambda: run.note("thaw")))
        yield Action(self.restart_every, lambda: self._restart(run))
        yield Action(self.squeeze_every, lambda: self._squeeze(run))
        yield Action(0.5, lambda: self._look_at_ttls(run))

    def _look_at_ttls(self, run: Run) -> None:
        for key in without_ttl(run.plan.url, run.plan.all_names()):
            run.note("forever", "", key)

    def _restart(self, run: Run) -> None:
        if urlsplit(run.plan.url).scheme not in FORGETS_NOTHING:
            run.note("down")
            self.server.restart()
            run.note("up")
        else:  # it forgets nothing, and is judged as if it had only been stopped
            run.note("freeze", note=RESTARTED)
            self.server.restart()
            run.note("thaw")

    def _squeeze(self, run: Run) -> None:
        run.note("squeeze")
        with without_memory(run.plan.url, run.plan.prefix):
            run.sleep(run.dice.uniform(0.02, run.plan.ttls[1]))


@contextlib.contextmanager
def without_memory(url: str, prefix: str) -> Iterator[None]:
    """Take the memory of a server until the end of the block, by keys that begin with `prefix` where it takes keys."""
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "tair"):
        with _redis(url):
            yield
    elif scheme == "memcached":
        with _memcached(url, prefix):
            yield
    else:
        yield


@contextlib.contextmanager
def _redis(url: str) -> Iterator[None]:
    client: Any = redis.Redis.from_url(url.replace("tair", "redis", 1), socket_timeout=2.0)
    with contextlib.suppress(redis.RedisError):
        client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        with contextlib.suppress(redis.RedisError):
            client.config_set("maxmemory", 0)
        client.close()


@contextlib.contextmanager
def _memcached(url: str, prefix: str) -> Iterator[None]:
    parts = urlsplit(url)
    names: list[bytes] = []
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "", parts.port or 11211), 2) as link:
        for size in _SIZES:
            for number in range(MOST // len(_SIZES)):
                name = b"%b:junk:%d:%d" % (prefix.encode(), size, number)
                link.sendall(b"set %b 0 60 %d\r\n%b\r\n" % (name, size, b"x" * size))
                if link.recv(200) != b"STORED\r\n":
                    break
                names.append(name)
    try:
        yield
    finally:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((parts.hostname or "", parts.port or 11211), 2) as link,
        ):
            for name in names:
                link.sendall(b"delete %b\r\n" % name)
                link.recv(200)
