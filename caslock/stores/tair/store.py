"""The two stores on TairString.  Every verb is one request, over the connections of the Redis store.

Waiters poll: what the module writes sends no notification.
"""

from __future__ import annotations

from typing import Final, Self

import redis
import redis.asyncio

from caslock.stores.redis.failures import ADVICE, NO_RIGHTS, Dialect
from caslock.stores.redis.store import AsyncRedisVerbs, RedisVerbs
from caslock.stores.redis.url import open_url
from caslock.stores.tair.requests import TairRequests

_NO_MODULE: Final = "The server has no TairString; load the module, or use a redis:// URL, which needs none"
_NO_PX: Final = "Leases need EXCAS with PX, which the open-source module has; use that module, or a redis:// URL"
_TAIR: Final = Dialect(
    "tair",
    ADVICE
    | {
        NO_RIGHTS: "Grant the user eval, evalsha, exget, exset, excas, del and time (and wait, with replicas)",
        "WRONGTYPE": "Another program stores a value other than a TairString under this key; use another or a prefix",
        "unknown command": _NO_MODULE,
        "Unknown Redis command": _NO_MODULE,
        "syntax error": _NO_PX,
        "number of arg": _NO_PX,
    },
)


class TairStore(RedisVerbs):
    """A `Store` on a server with TairString, for code that blocks; safe to share between threads and across a fork.

    Its client and other arguments are those of `RedisStore`.  A server without TairString, or one whose EXCAS takes no
    PX, is a `StoreError` at the first acquire.

    Versions, and so fences, are the server's wall clock in microseconds, or one more than the version before.  What
    `RedisStore` says about that clock is true here as well.
    """

    _dialect, _verbs = _TAIR, TairRequests

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """Open ``tair://`` or ``tairs://`` (TLS), which are else like the URLs of `RedisStore.from_url`."""
        return open_url(cls, redis.Redis.from_url, as_redis(url), prefix, replicas)


class AsyncTairStore(AsyncRedisVerbs):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    _dialect, _verbs = _TAIR, TairRequests

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """See `TairStore.from_url`."""
        return open_url(cls, redis.asyncio.Redis.from_url, as_redis(url), prefix, replicas)


def as_redis(url: str) -> str:
    """Return the URL as redis-py reads it; raises ValueError for another scheme, and quotes nothing of the URL."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in ("tair", "tairs"):
        raise ValueError("a Tair URL begins with tair:// or, for TLS, tairs://")
    return f"redis{scheme[4:]}://{rest}"
