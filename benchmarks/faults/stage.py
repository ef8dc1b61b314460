"""What a scene is played with: a key and clients of its own, a fault proxy, and a second process."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import redis

from benchmarks.faults.subject import AsyncSubject, Grip, Loop, Subject, Way
from benchmarks.places import FILE_PLACE, MEMCACHED_PLACE, REDIS_PLACE
from caslock.testing.proxy import PASS, FaultProxy, Passage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from benchmarks.faults.subject import Make
    from benchmarks.places import Places

Fault = Literal["cut after", "drop reply"]

PATIENCE: Final = 5.0
"""Seconds after the end of a lease, after which a key is taken to be blocked for ever."""

PAUSE: Final = 0.05

_READS: Final = (b"*2\r\n$3\r\nGET\r\n", b"get ", b"gets ", b"mg ")
_BINARY_READS: Final = {0x00, 0x09, 0x0C, 0x0D}  # memcached's get, getq, getk, getkq


class Cell(NamedTuple):
    """A verdict for the table, and the footnote under it."""

    verdict: str
    note: str


@dataclass(frozen=True)
class Stage:
    """What one scene is played with, for one library."""

    subject: Subject | AsyncSubject
    places: Places
    lease: float
    key: str
    """Only the keys of this scene and library contain it."""

    @property
    def straight(self) -> Way:
        """The way without a proxy."""
        host, port = ("", 0) if self.subject.place == FILE_PLACE else self.places.address(self.subject.place)
        return Way(host, port, self.places.folder)

    def opens(self, way: Way | None = None) -> Make:
        """Open another client, which ends with the process."""
        way = way or self.straight
        if isinstance(self.subject, AsyncSubject):
            return Loop().bridge(self.subject, way, self.lease)
        return self.subject.open(way, self.lease)

    def rival(self) -> Grip:
        """Give a lock of another client on the key."""
        return self.opens()(self.key)

    def free_in(self, key: str = "") -> tuple[Grip, float]:
        """Have another client try until it acquires; gives its lock, and the seconds it took (infinite: it did not).

        The caller keeps that lock: those of some libraries are released when nothing refers to them any more.
        """
        rival = self.opens()(key or self.key)
        start = time.monotonic()
        while True:
            tried = time.monotonic()
            if rival.acquire(0):
                return rival, tried - start
            if tried - start > self.lease + PATIENCE:
                return rival, float("inf")
            time.sleep(PAUSE)

    def observed(self) -> list[str]:
        """Ask the server which keys of this scene and library exist, and for how many more seconds."""
        if self.subject.place == REDIS_PLACE:
            with redis.Redis(*self.straight[:2]) as client:
                keys = sorted(client.scan_iter(f"*{self.key}*", count=1000))
                return [f"{key.decode()} {client.pttl(key) / 1000:.1f} s" for key in keys]
        return _crawl(self.straight, self.key) if self.subject.place == MEMCACHED_PLACE else []

    @contextlib.contextmanager
    def faulty(self) -> Iterator[tuple[Make, Faults]]:
        """Open a client whose requests pass through a proxy; it has locked and released once, so scripts are loaded."""
        faults = Faults()
        host, port, folder = self.straight
        with FaultProxy(host, port, faults.decide) as proxy:
            make = self.opens(Way("127.0.0.1", proxy.port, folder))
            warm = make(f"warm-{self.key}")
            if not warm.acquire(0):
                raise RuntimeError("not even the first acquire succeeded")
            warm.release()
            yield make, faults


class Faults:
    """The faults of a proxy: none, until one is asked for."""

    def __init__(self) -> None:
        """Begin without faults."""
        self.down = False
        """An outage: every connection is cut at its next request."""
        self.struck = 0
        self._plan: tuple[bytes, Fault] | None = None

    def strike(self, key: str, fault: Fault) -> None:
        """Lose the reply of the next request that would change the key; the request is applied."""
        self._plan = (key.encode(), fault)

    def decide(self, request: bytes) -> Passage:
        """See `FaultProxy`."""
        if self.down:
            return Passage("cut before")
        if self._plan is None or self._plan[0] not in request or _reads(request):
            return PASS
        (_, fault), self._plan = self._plan, None
        self.struck += 1
        return Passage(fault)


class Other:
    """A forked process that runs one part of a scene, and can be stopped and continued."""

    def __init__(self, part: Callable[[Connection], None]) -> None:
        """Fork, and start."""
        self._pipe, theirs = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            bind_to_parent()
            try:
                part(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def __enter__(self) -> Self:
        """Give the process, which ends with the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Kill it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def stop(self) -> None:
        """Freeze it, as a paused virtual machine is."""
        os.kill(self._pid, signal.SIGSTOP)
        os.waitpid(self._pid, os.WUNTRACED)

    def go_on(self) -> None:
        """End the pause."""
        os.kill(self._pid, signal.SIGCONT)

    def say(self) -> None:
        """Send it a signal to go on."""
        self._pipe.send(None)

    def hear(self, limit: float) -> object:
        """Receive its next message."""
        if not self._pipe.poll(limit):
            raise TimeoutError(f"the other process was silent for {limit:g} s")
        word: object = self._pipe.recv()
        return word


def bind_to_parent() -> None:
    """Have the kernel end this forked process with its parent, where it can."""
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        ctypes.CDLL(None).prctl(1, 9)


def _reads(request: bytes) -> bool:
    return request.startswith(_READS) or (request[:1] == b"\x80" and request[1] in _BINARY_READS)


def _crawl(way: Way, key: str) -> list[str]:
    with socket.create_connection(way[:2], timeout=5) as connection, connection.makefile("rwb") as stream:
        while True:
            stream.write(b"lru_crawler metadump hash\r\n")
            stream.flush()
            lines = [stream.readline()]
            while lines[-1].startswith(b"key="):
                lines.append(stream.readline())
            if not lines[-1].startswith(b"BUSY"):
                break
            time.sleep(PAUSE)
    found = [dict(part.split("=", 1) for part in line.decode().split() if "=" in part) for line in lines[:-1]]
    now = time.time()
    return sorted(f"{item['key']} {float(item['exp']) - now:.0f} s" for item in found if key in item["key"])
