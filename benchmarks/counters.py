"""Counts requests by the counters of the server that answered them.

Redis counts each read from a connection (``total_reads_processed``), which is one request or several that came in one
packet, and each command (``total_commands_processed``), including those that scripts call.  memcached counts commands.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import redis

from benchmarks.places import MEMCACHED_PLACE, REDIS_PLACE

if TYPE_CHECKING:
    from benchmarks.places import Places


class Count(NamedTuple):
    """What a server has counted between two moments, without our own requests."""

    requests: float | None
    commands: float | None
    clients: int
    by_command: Counter[str]


class Meter:
    """Reads the counters of the server of a place; a place without a server has none."""

    def __init__(self, places: Places, place: str) -> None:
        """Connect, so that this connection is included each time."""
        self._redis = self._memcached = None
        if place == REDIS_PLACE:
            host, port = places.address(place)
            self._redis = redis.Redis(host, port, decode_responses=True)
        elif place == MEMCACHED_PLACE:
            self._memcached = socket.create_connection(places.address(place))
        self._before = self._look()

    def begin(self) -> None:
        """Count from here."""
        self._before = self._look()

    def end(self) -> Count:
        """Give what was counted since `begin`."""
        before, after = self._before, self._look()
        if after is None or before is None:
            return Count(None, None, 0, Counter())
        by_command = after.by_command.copy()
        by_command.subtract(before.by_command)
        spent = Counter({name: times for name, times in by_command.items() if times})
        requests = None
        if after.requests is not None and before.requests is not None:
            requests = after.requests - before.requests - after.own
        commands = (after.commands or 0) - (before.commands or 0) - after.own
        return Count(requests, commands, after.clients, spent)

    def settled(self) -> int:
        """Count the clients, once the server has dropped those that have ended."""
        seen = -1
        for _ in range(100):
            before, seen = seen, self.end().clients
            if seen == before:
                break
            time.sleep(0.05)
        return seen

    def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            self._redis.close()
        if self._memcached is not None:
            self._memcached.close()

    def _look(self) -> _Look | None:
        if self._redis is not None:
            return _look_at_redis(self._redis)
        return None if self._memcached is None else _look_at_memcached(self._memcached)


class _Look(NamedTuple):
    requests: float | None
    commands: float
    clients: int
    by_command: Counter[str]
    own: int  # requests of ours that are counted


def _look_at_redis(client: redis.Redis) -> _Look:
    facts: dict[str, object] = dict(client.info("everything"))
    calls = Counter(
        {
            name.removeprefix("cmdstat_"): int(stat["calls"])
            for name, stat in facts.items()
            if isinstance(stat, dict) and name.startswith("cmdstat_") and name != "cmdstat_info"
        }
    )
    reads, commands = (int(str(facts[f"total_{what}_processed"])) for what in ("reads", "commands"))
    return _Look(reads, commands, int(str(facts["connected_clients"])), calls, own=1)


def _look_at_memcached(connection: socket.socket) -> _Look:
    connection.sendall(b"stats\r\n")
    answer = b""
    while not answer.endswith(b"END\r\n"):
        answer += connection.recv(65536)
    words = [line.split() for line in answer.decode().splitlines()]
    facts = {word[1]: word[2] for word in words if word[0] == "STAT"}
    # A meta command is counted as what it does: `mg` as a get, `md` as a delete.
    names = {"get": ("cmd_get",), "set, add, cas": ("cmd_set",), "delete": ("delete_hits", "delete_misses")}
    calls = Counter({name: sum(int(facts[part]) for part in parts) for name, parts in names.items()})
    return _Look(None, calls.total(), int(facts["curr_connections"]), calls, own=0)


def server_versions(places: Places) -> dict[str, str]:
    """Give the versions of the servers."""
    told = {}
    if REDIS_PLACE in places.servers:
        host, port = places.address(REDIS_PLACE)
        told["Redis server"] = str(redis.Redis(host, port).info("server")["redis_version"])
    if MEMCACHED_PLACE in places.servers:
        with socket.create_connection(places.address(MEMCACHED_PLACE)) as connection:
            connection.sendall(b"version\r\n")
            told["memcached server"] = connection.recv(200).decode().split()[-1]
    return told
