"""What is asked of a server with TairString, and how its replies are read: pure functions, for both APIs.

A key holds a TairString: the value, and a version that the server compares.  A new version is the server's TIME in
microseconds where nothing was, else one more than the version before.  The module alone would begin again at 1 after a
removal, and a stale holder's version could then be that of a later tenure.  Every write has a ttl.

Each script takes one key, because a proxy before several nodes refuses keys of several slots.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from caslock.store import Entry
from caslock.stores.redis.requests import FOREIGN, LAST_VERSION, Request, Requests, Script, checked_put, checked_version
from caslock.stores.redis.wire import invalid_reply

if TYPE_CHECKING:
    from caslock.stores.redis.wire import Reply

_PUT: Final = Script("put.lua", "caslock.stores.tair")
_REMOVE: Final = Script("remove.lua", "caslock.stores.tair")
_GONE: Final = re.compile(rb"[1-9][0-9]*!gone")


class TairRequests(Requests):
    """The three verbs as requests."""

    def get(self, key: str) -> Request[Entry | None]:
        """Read."""
        name = self.name(key)
        return Request((b"EXGET", name), name, _entry_there)

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Request[Entry | None]:
        """Write."""
        name = self.name(key)
        expected, ms = checked_put(value, version, ttl)
        return Request((b"EVALSHA", _PUT.digest, b"1", name, expected, ms, value), name, partial(entry, value), _PUT)

    def invalidate(self, key: str, version: int) -> Request[Entry | None]:
        """Remove."""
        name = self.name(key)
        return Request((b"EVALSHA", _REMOVE.digest, b"1", name, checked_version(version)), name, _entry_there, _REMOVE)


def entry(value: bytes, reply: Reply) -> Entry | None:
    """Read what is under the key after a verb; `value` was written if the reply is a version."""
    match reply:
        case None:
            return None
        case int(version):
            return Entry(value, version)
        case [bytes(there), int(version)]:
            if version == 0 and _GONE.fullmatch(there):
                return None
            return Entry(there, version if 0 < version <= LAST_VERSION else FOREIGN)
    raise invalid_reply(reply)


_entry_there: Final = partial(entry, b"")
