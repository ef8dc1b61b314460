"""What the members of a Hazelcast cluster mean for locks.  The settings of a map are not told to clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from caslock.cli.finding import note, warning
from caslock.stores.hazelcast.session import Session
from caslock.stores.hazelcast.target import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding
    from caslock.stores.hazelcast.target import Target

_PAIR: Final = 2


def examine(url: str) -> Iterator[Finding]:
    """Ask a member; raises `StoreError` where none answers."""
    target = target_of(url, None)
    members = asyncio.run(_members(target))
    means = "a restart of all members frees every lock, while its holder works on"
    yield note("Hazelcast keeps nothing on disk", means)
    if members == 1:
        yield warning("it has one member", "where that ends, every lock is free, while its holder works on", "Add two")
    elif members == _PAIR:
        means = "if they can't reach each other, both give every lock, or with split-brain protection, neither does"
        yield warning("it has two members", means, "Add a third")
    else:
        means = "if members can't reach each other, each part of them gives every lock"
        yield note("whether the map has split-brain protection is not told to clients", means, "Look at its settings")
    if len(target.members) < members:
        means = "while those that it names are down, the others are not asked"
        yield note(f"the URL names {len(target.members)} of {members} members", means, "Name all of them")


async def _members(target: Target) -> int:
    """Count the members that keep entries."""
    session = Session(target)
    try:
        return await session.members()
    finally:
        await session.close()
