"""Clusters of servers that a test may kill, and those who contend for a lock meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from caslock import CaslockError, ClosableStore, Hold, Lock
from tests.support.locations import fresh, until
from tests.support.servers import HOST, Kind, Process, Server, free_port, missing


class Cluster:
    """Three servers of a kind: a subclass knows how each is started, and who leads."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        """Start them, and wait until each answers."""
        binary = kind.binary() or missing(kind)
        ports, peers = ([free_port() for _ in range(3)] for _ in range(2))
        self.members = list[Server]()
        for number, port in enumerate(ports):
            own = folder / f"member-{number}"
            own.mkdir()
            body = Process([binary, *self.arguments(number, port, peers, own)], own)
            self.members.append(Server(kind, f"{kind.name}://{HOST}:{port}", HOST, port, body))
            body.start()
        for member in self.members:
            member.wait()

    def arguments(self, number: int, port: int, peers: Sequence[int], folder: Path) -> list[str]:
        """Give the arguments of one; all speak to each other at `peers`."""
        raise NotImplementedError

    @property
    def hosts(self) -> str:
        return ",".join(f"{member.host}:{member.port}" for member in self.members)

    def body(self, number: int) -> Process:
        """Give the process of a member."""
        body = self.members[number].body
        assert isinstance(body, Process)
        return body

    def close(self) -> None:
        for number in range(len(self.members)):
            self.body(number).resume()
            self.body(number).remove()

    def leader(self) -> int:
        raise NotImplementedError


class Turns:
    """What has become of a lock that several contend for."""

    def __init__(self) -> None:
        self.holds = list[tuple[int, Hold]]()
        """Who had it, in order."""
        self.overlaps = list[object]()
        self.losses = list[object]()

    def go_on(self, seconds: float) -> bool:
        """Tell whether it is had twenty times more within so many seconds."""
        count = len(self.holds)
        return until(lambda: len(self.holds) > count + 20, seconds)


@contextlib.contextmanager
def contenders(connect: Callable[[], ClosableStore], **settings: float) -> Iterator[Turns]:
    """Let four threads, each with a store of its own, take a lock in turn until the end of the block."""
    turns, key, over, inside = Turns(), fresh(), threading.Event(), list[int]()

    def contend(number: int) -> None:
        with connect() as store:
            while not over.is_set():
                lock = Lock(store, key, on_lost=turns.losses.append, **settings)  # type: ignore[arg-type] # numbers
                with contextlib.suppress(CaslockError), lock as hold:
                    inside.append(number)
                    if len(inside) > 1:
                        turns.overlaps.append(list(inside))
                    turns.holds.append((number, hold))
                    inside.remove(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield turns
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert turns.overlaps == []
