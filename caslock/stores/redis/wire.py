"""What caslock takes of hiredis, which packs requests and parses replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from redis import exceptions

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from hiredis import PushNotification, Reader, pack_command
except ImportError as _missing:
    raise ModuleNotFoundError(
        "a store on Redis needs hiredis 3.2 or newer: pip install 'caslock[redis]'", name="hiredis"
    ) from _missing

Reply: TypeAlias = "int | bytes | Exception | list[Reply] | None"
"""What hiredis makes of an answer of the server.  An error is a reply, too."""

PUSH: Final = PushNotification
"""The type of a reply that nobody has asked for."""

MORE: Final = object()
"""What a reader returns if it has no complete reply."""

packed: Callable[[tuple[bytes, ...]], bytes] = pack_command  # type: ignore[assignment] # its stub has one argument only
"""Makes one command of its arguments."""

_REPLIES: Final[dict[str, type[exceptions.RedisError]]] = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.MasterDownError,
    "MOVED": exceptions.MovedError,
    "NOAUTH": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
    "NOSCRIPT": exceptions.NoScriptError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
    "TRYAGAIN": exceptions.TryAgainError,
    "WRONGPASS": exceptions.AuthenticationError,
}


def new_reader() -> Reader:
    """Give a parser of replies: bytes stay bytes, and an error is a reply."""
    return Reader(protocolError=exceptions.InvalidResponse, replyError=reply_error, notEnoughData=MORE)


def reply_error(text: str) -> Exception:
    """Make redis-py's exception of an error that the server has answered."""
    code, _, rest = text.partition(" ")
    if code in _REPLIES:
        return _REPLIES[code](rest)
    return exceptions.ResponseError(rest if code == "ERR" else text)
