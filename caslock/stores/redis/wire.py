"""What caslock takes of hiredis, which packs requests and parses replies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from redis import cluster, exceptions
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


_IN_SCRIPT: Final = re.compile(
    r"ERR Error running script \(call to f_[0-9a-f]{40}\): @user_script:\d+: (@user_script: \d+: )?-?"
)
"""What Redis before version 7 puts before an error of a command in a script."""


def new_reader() -> Reader:
    """Return a parser of replies; bytes stay bytes."""
    return Reader(protocolError=exceptions.InvalidResponse, replyError=_error, notEnoughData=MORE)


def invalid_reply(reply: Reply) -> exceptions.InvalidResponse:
    """Return the error for a reply that can't be read; the request may have been applied."""
    return exceptions.InvalidResponse(f"invalid reply: {reply!r:.60}")


def _error(text: str) -> Exception:
    return _parsed(_IN_SCRIPT.sub("", text))


# Before redis-py 6, only the parser of its cluster client knows MOVED and ASK.
_parsed: Callable[[str], Exception] = getattr(cluster, "ClusterParser", DefaultParser).parse_error
