"""What the settings of a memcached mean for locks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pymemcache.client.base import Client

from caslock.cli.finding import FULL, clock, danger, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding


def examine(url: str) -> Iterator[Finding]:
    """Ask the server; raises an error of pymemcache, or OSError, where it does not answer."""
    parts = urlsplit(url)
    server = (parts.hostname, parts.port or 11211) if parts.hostname else unquote(parts.path)
    client = Client(server, timeout=5, connect_timeout=5)
    asked = time.time()
    try:
        facts: dict[bytes, Any] = client.stats()
        answered = time.time()
        settings: dict[bytes, Any] = client.stats("settings")
    finally:
        client.close()
    yield from clock(float(facts[b"time"]), asked, answered)
    yield note("memcached keeps nothing", "a restart frees every lock, while its holder works on")
    evicts = settings[b"evictions"] != b"off"
    if evicts:
        means = "a full server drops locks that are held, and others get them"
        yield warning("it evicts entries when it is full", means, "Start it with -M, for locks only")
        if facts[b"evictions"]:
            yield danger(f"it has evicted {facts[b'evictions']} entries", means, "Start it with -M, for locks only")
    share = facts[b"bytes"] / facts[b"limit_maxbytes"]
    if share >= FULL:
        kind = warning if evicts or share < 1 else danger
        yield kind(f"{share:.0%} of its memory is used", "a full server refuses locks or drops them", "Raise -m")
