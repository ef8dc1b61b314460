"""Redis Clusters and Sentinels of our own, whose primaries are stopped and killed while they are tortured.

What is killed has lost all it knew when it comes back, as a replica.  A store with ``replicas=1`` counts on nothing
that the next primary does not know.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import redis

from caslock.verify.run import Action, Run
from tests.proof.torture.server import freeze
from tests.support.locations import until
from tests.support.servers import HOST, REDIS, Process, Server, absent, free_port, private

OPTIONS = ("--save", "", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
SLOTS = 16384


class TroubledPrimaries:
    """Stops and kills one primary after the other."""

    def __init__(self, servers: SixNodes | Watched, every: float) -> None:
        """`every` seconds one is stopped, and one is killed."""
        self._servers, self._every = servers, every
        self.kills = 0

    def actions(self, run: Run) -> Iterator[Action]:
        """Give what is done to them, for `torture`."""
        yield Action(self._every, lambda: self._stop(run))
        yield Action(self._every, lambda: self._kill(run))

    def _stop(self, run: Run) -> None:
        freeze(run, run.dice.choice(self._servers.primaries()), lambda: self._settle(run))

    def _kill(self, run: Run) -> None:
        server = run.dice.choice(self._servers.primaries())
        run.note("freeze", note=urlsplit(run.plan.url).scheme)
        try:
            body(server).kill()
            self.kills += 1
            assert until(self._servers.replaced)
        finally:
            body(server).start()
            server.wait()
            self._settle(run)

    def _settle(self, run: Run) -> None:
        assert until(self._servers.ready)
        run.note("thaw")


class SixNodes:
    """A Cluster of three primaries, each with a replica."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        """Start it, and wait until it serves."""
        if not REDIS.binary():
            absent("no redis-server on the PATH to run as a Redis Cluster: `make servers` installs one")
        options = (*OPTIONS, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        self._nodes: list[Server] = []
        first = free_port()
        for number in range(6):
            place = folder / str(number)
            place.mkdir()
            bus = free_port() if number else first
            ports = ("--cluster-announce-ip", HOST, "--cluster-port", str(bus))
            self._nodes.append(stack.enter_context(private(REDIS, place, *options, *ports)))
            if number < 3:
                said(self._nodes[-1], "CLUSTER", "ADDSLOTSRANGE", SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1)
                said(self._nodes[-1], "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                said(self._nodes[-1], "CLUSTER", "MEET", HOST, self._nodes[0].port, first)
        assert until(lambda: all(_knows_all(node) for node in self._nodes))
        for primary, replica in zip(self._nodes[:3], self._nodes[3:], strict=True):
            said(replica, "CLUSTER", "REPLICATE", said(primary, "CLUSTER", "MYID").decode())
        assert until(self.ready)
        places = ",".join(f"{HOST}:{node.port}" for node in self._nodes)
        self.url = f"redis+cluster://{places}?replicas=1&socket_timeout=1"

    def primaries(self) -> list[Server]:
        """Those that are primaries now, of those that answer."""
        return [node for node in self._nodes if _role(node)[0] == b"master"]

    def replaced(self) -> bool:
        """Tell whether another has taken the place of the one that was killed."""
        return len(self.primaries()) == 3

    def ready(self) -> bool:
        """Tell whether each primary has its replica."""
        roles = [_role(node) for node in self._nodes]
        return sorted(role[0] for role in roles) == [b"master"] * 3 + [b"slave"] * 3 and all(map(_follows, roles))


class Watched:
    """A primary and its replica, and a Sentinel."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        """Start them, and wait until they are ready to fail over."""
        if not shutil.which("redis-server"):
            absent("no redis-server on the PATH to run as a Sentinel: `make servers` installs one")
        for name in ("one", "two", "sentinel"):
            (folder / name).mkdir()
        primary = stack.enter_context(private(REDIS, folder / "one", *OPTIONS))
        replica = stack.enter_context(private(REDIS, folder / "two", *OPTIONS, "--replicaof", HOST, str(primary.port)))
        self.servers = primary, replica
        self.port = free_port()
        assert until(self.ready)
        settings = folder / "sentinel" / "sentinel.conf"
        settings.write_text(
            f"port {self.port}\nbind {HOST}\nsentinel monitor main {HOST} {primary.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        sentinel = Process([shutil.which("redis-server") or "", str(settings), "--sentinel"], folder / "sentinel")
        stack.callback(sentinel.remove)
        sentinel.start()
        assert until(lambda: self.asked("SENTINEL", "REPLICAS", "main"))
        self.url = f"redis+sentinel://{HOST}:{self.port}/main?replicas=1&socket_timeout=1"

    def asked(self, *command: str) -> Any:  # noqa: ANN401 - as redis-py answers
        """Ask the Sentinel; None: it does not answer, or refuses."""
        client: Any = redis.Redis(host=HOST, port=self.port, socket_timeout=1)
        with client, contextlib.suppress(redis.RedisError):
            return client.execute_command(*command)
        return None

    def _current(self) -> int:
        place = self.asked("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        return int(place[1]) if place else 0

    def primaries(self) -> list[Server]:
        """The one that is primary now, if it answers."""
        return [each for each in self.servers if _role(each)[0] == b"master" and each.port == self._current()]

    def replaced(self) -> bool:
        """Tell whether the other has taken the place of the one that was killed."""
        return bool(self.primaries())

    def ready(self) -> bool:
        """Tell whether the primary has its replica; have it follow, as Sentinel would after ten seconds."""
        roles = [_role(each) for each in self.servers]
        for current in self.primaries():
            for each, role in zip(self.servers, roles, strict=True):
                if each is not current and role[0] == b"master":
                    said(each, "REPLICAOF", HOST, current.port)
        return sorted(role[0] for role in roles) == [b"master", b"slave"] and all(map(_follows, roles))


def body(server: Server) -> Process:
    """Give the process of a server of our own."""
    return cast("Process", server.body)


def said(server: Server, *command: object) -> Any:  # noqa: ANN401 - as redis-py answers
    """Send a command to one server."""
    client: Any = redis.Redis(host=HOST, port=server.port, socket_timeout=1)
    with client:
        return client.execute_command(*command)


def _role(server: Server) -> Any:  # noqa: ANN401 - as redis-py answers
    with contextlib.suppress(redis.RedisError):
        return said(server, "ROLE")
    return [b"none"]


def _follows(role: Any) -> bool:  # noqa: ANN401 - as redis-py answers
    return (role[0] == b"master" and len(role[2]) == 1) or (role[0] == b"slave" and role[3] == b"connected")


def _knows_all(node: Server) -> bool:
    info = said(node, "CLUSTER", "INFO")
    text = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
    return bool(text["cluster_known_nodes"] == "6" and text["cluster_state"] == "ok")
