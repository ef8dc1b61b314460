"""What caslock takes of hiredis, which packs requests and parses replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from redis import exceptions
from redis.connection import DefaultParser

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from hiredis import PushNotification, Reader, pack_command
except ImportError as _missing:
    raise ModuleNotFoundError(
        "a store on Redis needs hiredis 3.2 or newer: pip install 'caslock[redis]'", name="hiredis"
    ) from _missing

Reply: TypeAlias = "int | bytes | Exception | list[Reply] | None"
"""What hiredis makes of an answer of the server.  An error is a reply, too: redis-py's exception."""

PUSH: Final = PushNotification
"""The type of a reply that nobody has asked for."""

MORE: Final = object()
"""What a reader returns if it has no complete reply."""

packed: Callable[[tuple[bytes, ...]], bytes] = pack_command  # type: ignore[assignment] # its stub has one argument only
"""Makes one command of its arguments."""


def new_reader() -> Reader:
    """Return a parser of replies; bytes stay bytes."""
    error: Callable[[str], Exception] = DefaultParser.parse_error
    return Reader(protocolError=exceptions.InvalidResponse, replyError=error, notEnoughData=MORE)
