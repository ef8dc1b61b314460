"""What the members of a Hazelcast cluster mean for locks.  The settings of a map are not told to clients."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from caslock.cli.finding import note, warning
from caslock.stores.hazelcast.place import place_of
from caslock.stores.hazelcast.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding
    from caslock.stores.hazelcast.place import Place

_PAIR: Final = 2


def examine(url: str) -> Iterator[Finding]:
    """Ask a member; raises `StoreError` where none answers."""
    place = place_of(url, None)
    members = asyncio.run(_members(place))
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
    if len(place.members) < members:
        means = "while those that it names are down, the others are not asked"
        yield note(f"the URL names {len(place.members)} of {members} members", means, "Name all of them")


async def _members(place: Place) -> int:
    """Count the members that keep entries."""
    session = Session(place)
    try:
        return await session.members(monotonic() + place.timeout)
    finally:
        await session.close()
