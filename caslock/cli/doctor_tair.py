"""What the settings of a server with TairString mean for locks: those of a Redis, and whether its commands suffice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import redis

from caslock.cli import doctor_redis
from caslock.cli.finding import danger
from caslock.stores.redis.url import read_url
from caslock.stores.tair.store import as_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding

_USE: Final = "Load the open-source module TairString, or use a redis:// URL, which needs none"


def examine(url: str) -> Iterator[Finding]:
    """Ask the server; raises an error of redis-py where it does not answer."""
    url = as_redis(url)
    yield from doctor_redis.examine(url)
    with redis.Redis.from_url(read_url(url).url, socket_timeout=5, socket_connect_timeout=5) as client:
        try:
            client.execute_command("EXCAS", "caslock-doctor", "", 1, "PX", 1)  # it writes nothing: nothing is there
        except redis.ResponseError as error:
            text = str(error).lower()
            if "unknown command" in text:
                yield danger("it has no TairString", "no lock can be acquired", _USE)
            elif "syntax" in text or "number of arg" in text:
                yield danger("its EXCAS takes no PX", "no lock can be acquired", _USE)
