"""What the servers of a ZooKeeper ensemble mean for locks."""

from __future__ import annotations

import re
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kazoo.protocol.serialization import GetData, SetData

from caslock.cli.finding import clock, danger, note, warning
from caslock.stores.zookeeper.connection import SESSION, Servers
from caslock.stores.zookeeper.failures import Failures
from caslock.stores.zookeeper.target import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding
    from caslock.stores.zookeeper.target import Target

_MEMBER: Final = re.compile(rb"^server\.\d+=.*$", re.MULTILINE)
_PAIR: Final = 2
_HANG: Final = (((3, 6, 0), (3, 6, 4)), ((3, 7, 0), (3, 7, 2)), ((3, 8, 0), (3, 8, 1)))
"""The versions that have ZOOKEEPER-4537: from the first of each pair to before the second."""


class _Server(NamedTuple):
    """What a server says of itself."""

    name: str
    told: str  # nothing: it does not answer

    def line(self, title: str) -> str:
        """Give what stands behind a title; nothing where there is none."""
        found = re.search(f"^{title}: *(.*)$", self.told, re.MULTILINE)
        return found[1] if found else ""

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", self.line("Zookeeper version"))[:3]))


def examine(url: str) -> Iterator[Finding]:
    """Ask each server; raises `StoreError` where none opens a session."""
    target = target_of(url, None)
    connection = Servers(target, Failures(target.location)).take(time.monotonic() + target.timeout)
    try:
        # Like every lock, it writes an empty value to the znode of the path, because only a write shows the clock.
        requests, asked = [GetData("/zookeeper/config", watcher=False), SetData(target.root, b"", -1)], time.time()
        config, written = connection.ask(requests, time.monotonic() + target.timeout)
        answered = time.time()
    finally:
        connection.close()
    if written.error is None:
        yield from clock(written.answer.mtime / 1000, asked, answered)
    servers = [_Server(f"{host}:{port}", _said(target, host, port)) for host, port in target.hosts]
    for server in servers:
        yield from _one(server)
    members = [] if config.error else _MEMBER.findall(config.answer[0])
    if config.error:
        yield note("its configuration is not told to this user", "how many servers it has is not known")
    else:
        yield from _all(servers, members)
    if connection.session < SESSION:
        means = "connections are made anew for renewals that are further apart, and for each acquire after a pause"
        yield note(f"sessions end after {connection.session / 1000:g} s", means, f"Set maxSessionTimeout to {SESSION}")


def _one(server: _Server) -> Iterator[Finding]:
    if not server.told:
        yield warning(f"{server.name} does not answer", "if others fail, too, no lock can be acquired", "Start it")
    elif not server.line("Mode"):
        yield warning(f"{server.name} serves nobody", "if others fail, too, no lock can be acquired", "See its log")
    elif server.line("Mode") != "standalone" and any(first <= server.version < fixed for first, fixed in _HANG):
        means = "it may leave a request unanswered until somebody else writes, and the lock asks again after timeout="
        version = ".".join(map(str, server.version))
        yield warning(f"{server.name} has version {version}", means, "Use 3.8.1 or newer (ZOOKEEPER-4537)")


def _all(servers: list[_Server], members: list[bytes]) -> Iterator[Finding]:
    voting = [member for member in members if b":observer" not in member]
    alone = [server.name for server in servers if server.line("Mode") == "standalone"]
    if alone and len(servers) > 1:
        what = (
            f"the URL names several servers, and {' and '.join(alone)} {'is' if len(alone) == 1 else 'are'} standalone"
        )
        yield danger(what, "two processes can get one lock", "Name the servers of one ensemble")
    elif len(voting) <= 1:
        yield note("it has one server", "while that is down, no lock can be acquired")
    elif len(voting) == _PAIR:
        yield warning("it has two servers", "without either of them, no lock can be acquired", "Add a third")
    if len(servers) < len(members):
        means = "while those that it names are down, the others are not asked"
        yield note(f"the URL names {len(servers)} of {len(members)} servers", means, "Name all of them")


def _said(target: Target, host: str, port: int) -> str:
    """Ask a server about itself, by a command that needs no session, and is always allowed."""
    try:
        with socket.create_connection((host, port), target.timeout) as plain:
            secure = target.tls.wrap_socket(plain, server_hostname=host) if target.tls else plain
            with secure:
                secure.sendall(b"srvr")
                return b"".join(iter(partial(secure.recv, 4096), b"")).decode(errors="replace")
    except OSError:
        return ""
