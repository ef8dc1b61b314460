"""Minimal locks with a lease, written by hand: a floor for what a lock can cost.

They have no renewal, no fence, no safe retry and no queue.  Under contention they ask again every millisecond.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

import redis
import redis.asyncio
from pymemcache.client.base import Client

from benchmarks.candidate import LEASE, AsyncCandidate, AsyncHandle, AsyncMake, Candidate, Handle, Kind, Make
from benchmarks.places import MEMCACHED_PLACE, MEMORY_PLACE, REDIS_PLACE, Places

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE: Final = 0.001
RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"
DIGEST: Final = hashlib.sha1(RELEASE.encode(), usedforsecurity=False).hexdigest()

REDIS_PY: Final = "SET NX PX + EVALSHA by redis-py"
SOCKET: Final = "SET NX PX + EVALSHA by a bare socket"
BLPOP: Final = "BLPOP + LPUSH of a token by redis-py"
PYMEMCACHE: Final = "add + delete by pymemcache"
ASYNC: Final = "SET NX PX + EVALSHA by redis.asyncio"
THREADING: Final = "threading.Lock"


def _until(attempt: Callable[[], object]) -> Callable[[], None]:
    def acquire() -> None:
        while not attempt():
            time.sleep(PAUSE)

    return acquire


def _redis_py(places: Places) -> Make:
    host, port = places.address(REDIS_PLACE)
    client = redis.Redis(host, port)
    client.script_load(RELEASE)

    def make(key: str) -> Handle:
        token = secrets.token_hex(16)
        acquire = _until(lambda: client.set(key, token, nx=True, px=LEASE * 1000))
        return Handle(acquire, lambda: client.evalsha(DIGEST, 1, key, token))

    return make


def _socket(places: Places) -> Make:
    address = places.address(REDIS_PLACE)

    def make(key: str) -> Handle:
        connection = socket.create_connection(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(*words: bytes) -> bytes:
            packet = b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
            connection.sendall(packet)
            answer = connection.recv(4096)
            while not answer.endswith(b"\r\n"):
                answer += connection.recv(4096)
            return answer

        name, token = key.encode(), secrets.token_hex(16).encode()
        ask(b"SCRIPT", b"LOAD", RELEASE.encode())
        lease = b"%d" % (LEASE * 1000)
        acquire = _until(lambda: ask(b"SET", name, token, b"NX", b"PX", lease) == b"+OK\r\n")
        return Handle(acquire, lambda: ask(b"EVALSHA", DIGEST.encode(), b"1", name, token))

    return make


def _token(places: Places) -> Make:
    host, port = places.address(REDIS_PLACE)
    client = redis.Redis(host, port)

    def make(key: str) -> Handle:
        if client.set(f"{key}:made", 1, nx=True, px=LEASE * 10_000):
            client.lpush(key, "token")
            client.expire(key, LEASE * 10)

        def acquire() -> None:
            if client.blpop([key], timeout=LEASE) is None:
                raise TimeoutError(f"no token for {LEASE} s")

        return Handle(acquire, lambda: client.lpush(key, "token"))

    return make


def _pymemcache(places: Places) -> Make:
    address = places.address(MEMCACHED_PLACE)

    def make(key: str) -> Handle:
        client = Client(address, no_delay=True, timeout=LEASE)  # it is not for several threads
        token = secrets.token_hex(16)
        acquire = _until(lambda: client.add(key, token, expire=LEASE, noreply=False))
        return Handle(acquire, lambda: client.delete(key, noreply=False))

    return make


def _threading(_: Places) -> Make:
    locks: dict[str, threading.Lock] = {}

    def make(key: str) -> Handle:
        lock = locks.setdefault(key, threading.Lock())
        return Handle(lock.acquire, lock.release)

    return make


def _async(places: Places) -> AsyncMake:
    host, port = places.address(REDIS_PLACE)
    redis.Redis(host, port).script_load(RELEASE)
    client = redis.asyncio.Redis(host=host, port=port)

    def make(key: str) -> AsyncHandle:
        token = secrets.token_hex(16)

        async def acquire() -> None:
            if not await client.set(key, token, nx=True, px=LEASE * 1000):
                raise RuntimeError("it is used without contention only")

        async def release() -> None:
            await client.evalsha(DIGEST, 1, key, token)

        return AsyncHandle(acquire, release)

    return make


FLOORS: Final = (
    Candidate(REDIS_PY, REDIS_PLACE, Kind.FLOOR, _redis_py),
    Candidate(SOCKET, REDIS_PLACE, Kind.FLOOR, _socket),
    Candidate(BLPOP, REDIS_PLACE, Kind.FLOOR, _token),
    Candidate(PYMEMCACHE, MEMCACHED_PLACE, Kind.FLOOR, _pymemcache),
    Candidate(THREADING, MEMORY_PLACE, Kind.FLOOR, _threading, threads_only=True),
)
FLOORS_ASYNC: Final = (AsyncCandidate(ASYNC, REDIS_PLACE, Kind.FLOOR, _async),)
