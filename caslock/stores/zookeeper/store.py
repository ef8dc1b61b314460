"""The store: each verb is one round trip, that of a transaction and of a read behind it."""

from __future__ import annotations

import math
import secrets
import time
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create, GetChildren, GetData, SetData, Sync

from caslock.errors import StoreError, StoreUnavailable
from caslock.process.fork import generation
from caslock.process.guards import on_failure
from caslock.store import ABSENT, Entry, Traits
from caslock.stores.shared.closing import Closing
from caslock.stores.shared.connections import remember
from caslock.stores.zookeeper.connection import Servers
from caslock.stores.zookeeper.failures import MOVED, Failures
from caslock.stores.zookeeper.target import target_of
from caslock.stores.zookeeper.znodes import (
    change,
    clock_of,
    creation,
    data_of,
    key_of,
    path_of,
    read,
    removal,
    znode_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kazoo.client import KazooClient

    from caslock.stores.zookeeper.connection import Connection, Reply
    from caslock.stores.zookeeper.znodes import Clock, Znode

T = TypeVar("T")

_CONNECTIONS: Final = 8
"""Requests of a process at one time, and waits of a process at one time: a server takes 60 connections of a host."""

_PAUSE: Final = 0.002  # seconds between two looks for a free connection
_FRESH: Final = 5.0  # seconds for which the leader's clock is known
_LISTED: Final = 100  # entries that are read in one request


class ZooKeeperStore(Closing):
    """A `Store` in a ZooKeeper ensemble; safe to share between threads and across a fork.

    A lease is not tied to a session: it lasts for its ttl, whatever becomes of connections and sessions.  It is
    measured by the clock of the ensemble's leader.  ZooKeeper does not end it, so whoever finds it over deletes it: by
    the clock of the same leader, or, if the leader has changed since, after having watched it for its whole ttl.
    """

    def __init__(self, target: str | KazooClient, *, timeout: float | None = None) -> None:
        """Keep the entries in ``zookeeper://user:password@host:port,host:port/path``; no I/O yet.

        ``zookeepers://`` is TLS, with ``?ca=``, ``certfile=``, ``keyfile=``, ``keyfile_password=`` and
        ``check_hostname=no``.  Of a `KazooClient` the store takes its hosts, chroot, credentials, ACL and TLS, not its
        connection.  `timeout` (2 s) is how long a verb may take, also as ``?timeout=`` in a URL.
        Raises ValueError for a malformed URL, and TypeError for what is neither a URL nor a client.
        """
        self._target = target_of(target, timeout)
        self._root = self._target.root
        self._failures = Failures(self._target.location)
        self._servers = Servers(self._target, self._failures)
        self._busy: dict[tuple[int, bool], set[object]] = {}  # by generation: who asks at a fork is the parent's
        self._known: dict[str, Znode] = {}  # by path: what an entry was when it was last seen
        self._clock: Clock | None = None
        self.traits: Traits = Traits(self._target.location, request_timeout=self._target.timeout)

    def get(self, key: str) -> Entry | None:
        """See `Store.get`; it deletes an entry that has expired."""
        path, ends = path_of(self._root, key), self._ends()
        return _entry(self._look(path, ends))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        path, ends, guard = path_of(self._root, key), self._ends(), secrets.token_hex(8)
        data = data_of(value, ttl, guard)
        while True:
            if version == ABSENT:
                request = creation(path, data, guard, self._target.acl)
            else:
                known = self._at(path, version, ends)
                if known is None or known.entry.version != version:
                    return _entry(known)
                guard = known.guard
                data = data_of(value, ttl, guard)
                request = change(path, data, known)
            asked = monotonic()
            written, look = self._ask([request, GetData(path, watcher=False)], ends)
            if self._done(written, *MOVED):
                stat = written.answer[-1]
                self._clock = clock_of(stat)
                return remember(self._known, path, znode_of(value, guard, stat, ttl)._replace(ends=asked + ttl)).entry
            found = self._found(path, look, ends)
            if found is not None or version != ABSENT:
                return _entry(found)
            if isinstance(written.error, NoNodeError):
                self._make_root(ends)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        path, ends = path_of(self._root, key), self._ends()
        known = self._at(path, version, ends)
        if known is None or known.entry.version != version:
            return _entry(known)
        return _entry(self._remove(path, known, ends))

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`: a watch of the znode, on a connection of its own."""
        path, ends = path_of(self._root, key), self._ends()
        until = monotonic() + timeout

        def wait(connection: Connection) -> Reply:
            _, look = connection.ask([Sync(path), GetData(path, watcher=True)], ends)
            if look.error is None and look.answer[1].mzxid == version:
                connection.changed(path, until)
            return look

        self._done(self._use(wait, ends, waits=True), NoNodeError)

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """See `ListingStore.list`: the names in one request, and a hundred entries in each of the next."""
        _, answer = self._ask([Sync(self._root), GetChildren(self._root, watcher=False)], self._ends())
        if not self._done(answer, NoNodeError):
            return
        keys = sorted(key for key in map(key_of, answer.answer) if key and key.startswith(prefix))
        for first in range(0, len(keys), _LISTED):
            some, ends = keys[first : first + _LISTED], self._ends()
            paths = [path_of(self._root, key) for key in some]
            reads = [GetData(path, watcher=False) for path in paths]
            looks = self._ask([Sync(self._root), *reads], ends)[1:]
            for key, path, look in zip(some, paths, looks, strict=True):
                ours = look.error is not None or read(*look.answer) is not None
                found = self._found(path, look, self._ends()) if ours else None
                if found is not None:
                    yield key, found.entry

    def close(self) -> None:
        """Close the idle connections.  A later request opens one, and closes it."""
        self._servers.end()

    def _at(self, path: str, version: int, ends: float) -> Znode | None:
        """Return the entry, from memory if it had this version and is not over."""
        known = self._known.get(path)
        if known is None or known.entry.version != version or known.ends <= monotonic():
            return self._look(path, ends)
        return known

    def _look(self, path: str, ends: float) -> Znode | None:
        """Read the entry as it is now: what a server answers that lags behind the leader is not known to be that."""
        _, look = self._ask([Sync(path), GetData(path, watcher=False)], ends)
        return self._found(path, look, ends)

    def _found(self, path: str, look: Reply, ends: float) -> Znode | None:
        """Return the entry that was read, unless it has expired: then it is deleted."""
        if not self._done(look, NoNodeError):
            self._known.pop(path, None)
            return None
        znode = read(*look.answer)
        if znode is None:
            raise StoreError(f"{self.traits.location} has a znode at {path} that caslock has not written")
        known = self._known.get(path)
        if known is not None and known.entry.version == znode.entry.version:
            znode = known
        if znode.ends > monotonic() and znode is known:
            return znode
        znode = remember(self._known, path, self._timed(znode, ends))
        return self._remove(path, znode, ends) if znode.ends <= monotonic() else znode

    def _timed(self, znode: Znode, ends: float) -> Znode:
        """Tell when a lease is over; that it is over now, only by a clock that was read after the entry."""
        now, clock = monotonic(), self._clock
        if clock is None or clock.epoch < znode.epoch or now - clock.seen > _FRESH:
            clock = self._tell_time(ends)
        if clock.seen < now and clock.left(znode, now) <= 0:
            clock = self._tell_time(ends)
        if clock.epoch == znode.epoch:
            now = monotonic()
            return znode._replace(ends=now + min(clock.left(znode, now), znode.ttl / 1000))
        # The clocks of two leaders may differ, so its whole ttl has to go by here.
        return znode if znode.ends < math.inf else znode._replace(ends=now + znode.ttl / 1000)

    def _remove(self, path: str, znode: Znode, ends: float) -> Znode | None:
        """Delete an entry, if it is still that one; return what is there otherwise."""
        removed, look = self._ask([removal(path, znode), GetData(path, watcher=False)], ends)
        if self._done(removed, *MOVED):
            self._known.pop(path, None)
            return None
        return self._found(path, look, ends)

    def _tell_time(self, ends: float) -> Clock:
        """Write to the root, to see the leader's clock."""
        while True:
            (written,) = self._ask([SetData(self._root, b"", -1)], ends)
            if self._done(written, NoNodeError):
                self._clock = clock = clock_of(written.answer)
                return clock
            self._make_root(ends)

    def _make_root(self, ends: float) -> None:
        names = self._root.split("/")
        paths = ["/".join(names[: depth + 1]) for depth in range(1, len(names))]
        for reply in self._ask([Create(path, b"", self._target.acl, 0) for path in paths], ends):
            self._done(reply, NodeExistsError)

    def _done(self, reply: Reply, *expected: type[Exception]) -> bool:
        """Tell whether a request has succeeded; raises what its error means, unless that is an `expected` one."""
        if reply.error is not None and not isinstance(reply.error, expected):
            raise self._failures.of(reply.error, sent=True)
        return reply.error is None

    def _ends(self) -> float:
        return monotonic() + self._target.timeout

    def _ask(self, requests: Sequence[Any], ends: float) -> Sequence[Reply]:
        return self._use(lambda connection: connection.ask(requests, ends), ends)

    def _use(self, act: Callable[[Connection], T], ends: float, *, waits: bool = False) -> T:
        """Use a connection that nobody else uses.  It is closed after any failure, since an answer may still come."""
        busy, place = self._busy.setdefault((generation(), waits), set()), object()
        while len(busy) >= _CONNECTIONS:
            if waits or monotonic() > ends:
                what = "waits" if waits else "requests"
                raise StoreUnavailable(f"{self.traits.location} has {_CONNECTIONS} {what} of this process", sent=False)
            time.sleep(_PAUSE)
        try:
            busy.add(place)
            connection = self._servers.take(ends)
            try:
                with on_failure(connection.link.close):
                    result = act(connection)
            except Exception as error:
                self._servers.leave(connection.link.endpoint)
                raise self._failures.of(error, sent=True) from error
            self._servers.idle.keep(connection)
            return result
        finally:
            busy.discard(place)


def _entry(znode: Znode | None) -> Entry | None:
    return None if znode is None else znode.entry
