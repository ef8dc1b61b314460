"""How an entry is kept: as a znode with a guard below it.

The znode of an entry is ``<root>/<key, percent-encoded>``.  Its data is a line with the ttl in milliseconds and the
name of the guard, and then the value.  The guard is an empty child with a random name, which is made and deleted with
the znode.  ZooKeeper counts the writes of a znode from 0 again when it is created again, so their number alone could
match that of a later entry.  A write therefore asks for the guard, too, which never comes again.

The version of an entry is the zxid of its last write, which grows with each write to the ensemble.
"""

from __future__ import annotations

import math
import re
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction

from caslock.store import MAX_KEY, Entry, check_key, check_put

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD: Final = re.compile(rb"caslock ([0-9]{1,15}) ([0-9a-f]{16})\n")
_LONGEST: Final = 10**12  # seconds of a lease
_EPOCH: Final = 32  # bits of a zxid below the number of the leader


class Znode(NamedTuple):
    """An entry, and what is needed to change it."""

    entry: Entry
    guard: str
    writes: int
    """ZooKeeper's own version of the znode."""
    written: int
    """When, in milliseconds, by the clock of the leader at that time."""
    ttl: int
    """Milliseconds."""
    ends: float = math.inf
    """When the lease is over, as far as this process knows, on its own clock."""

    @property
    def epoch(self) -> int:
        """Which leader has written it: each has a number of its own."""
        return self.entry.version >> _EPOCH


class Clock(NamedTuple):
    """The leader's clock, as a write has shown it."""

    time: int
    """Milliseconds."""
    epoch: int
    """Which leader that was."""
    seen: float
    """When its answer came, on our own clock."""

    def left(self, znode: Znode, now: float) -> float:
        """Return the seconds for which a lease may go on after `now`: this clock shows at least this time by then."""
        ends = znode.written + znode.ttl + 1  # both times are cut to milliseconds
        return (ends - self.time) / 1000 - (now - self.seen)


def clock_of(stat: Any) -> Clock:  # noqa: ANN401 - kazoo comes without types
    """Read the clock from the state of a znode that was just written."""
    return Clock(stat.mtime, stat.mzxid >> _EPOCH, monotonic())


def path_of(root: str, key: str) -> str:
    """Name the znode of a key: no two keys share one, and none has a name with a meaning of its own, such as ``..``."""
    check_key(key)
    return f"{root}/{quote(key, safe=':').replace('.', '%2E')}"


def key_of(name: str) -> str | None:
    """Return the key of a znode's name; None: no key has that name."""
    key = unquote(name)
    return key if 0 < len(key) <= MAX_KEY and path_of("", key) == f"/{name}" else None


def data_of(value: bytes, ttl: float, guard: str) -> bytes:
    """Return what is written; raises ValueError for a value or a ttl that can't be kept."""
    check_put(value, ttl, _LONGEST)
    return b"caslock %d %b\n%b" % (math.ceil(ttl * 1000), guard.encode(), value)


def read(data: bytes | None, stat: Any) -> Znode | None:  # noqa: ANN401 - kazoo comes without types
    """Read a znode; None: caslock has not written it."""
    head = _HEAD.match(data or b"")
    if data is None or head is None:
        return None
    return Znode(Entry(data[head.end() :], stat.mzxid), head[2].decode(), stat.version, stat.mtime, int(head[1]))


def znode_of(value: bytes, guard: str, stat: Any, ttl: float) -> Znode:  # noqa: ANN401 - kazoo comes without types
    """Return what was written."""
    return Znode(Entry(value, stat.mzxid), guard, stat.version, stat.mtime, math.ceil(ttl * 1000))


def creation(path: str, data: bytes, guard: str, acl: Sequence[object]) -> Transaction:
    """Create an entry.  The last operation, which writes the same once more, has the state in its answer."""
    return Transaction([Create(path, data, acl, 0), Create(f"{path}/{guard}", b"", acl, 0), SetData(path, data, 0)])


def change(path: str, data: bytes, znode: Znode) -> Transaction:
    """Write over an entry, if it is still that one."""
    return Transaction([CheckVersion(f"{path}/{znode.guard}", 0), SetData(path, data, znode.writes)])


def removal(path: str, znode: Znode) -> Transaction:
    """Delete an entry, if it is still that one."""
    return Transaction([Delete(f"{path}/{znode.guard}", 0), Delete(path, znode.writes)])
