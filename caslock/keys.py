"""Makes keys from parts, such that different texts never make the same key.

A part becomes text in which letters, digits and ``-_.@~`` stay as they are, and every other character is
percent-encoded; ``:`` separates the parts.  A number and its text are one part: one caller may have an id from a path,
and another from a row, and to exclude each other too often does less harm than not to.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final
from uuid import UUID

from caslock.store import MAX_KEY

Part = str | int | UUID | date | None
"""What a key can be made of: `bool` is a kind of `int`, and `datetime` a kind of `date`."""

PLAIN: Final = "-_.@~"
"""What stays as it is, besides letters and digits of any alphabet."""

EMPTY: Final = "''"
"""What an empty text is written as."""


def key(*parts: Part) -> str:
    """Return a key made of `parts`: ``key("room", 42)`` is ``"room:42"``.

    A part is a `str`, `int`, `bool`, `~uuid.UUID`, `~datetime.date`, `~datetime.datetime` or None; an aware datetime is
    written in UTC.  What counts is the text of a part, so 42 and "42" make the same key; parts with different texts
    never do.  Of a key that would be longer than 1,024 characters the end is a digest.

    Raises:
        TypeError: there is no part, or one is of another type (say which of its attributes identifies it).
        ValueError: a text can't be encoded as UTF-8.

    """
    if not parts:
        message = "a key needs at least one part"
        raise TypeError(message)
    return bounded(":".join([part_text(part, f"part {number}") for number, part in enumerate(parts, 1)]))


def part_text(part: object, name: str, plain: str = PLAIN) -> str:
    """Return the text of a part, in which of all signs only those in `plain` stay as they are; `name` is for errors."""
    if isinstance(part, str):
        return quoted(str.__str__(part), name, plain) or EMPTY
    if part is None or isinstance(part, bool):
        return str(part)
    if isinstance(part, int):
        return quoted(int.__repr__(part), name, plain)
    if isinstance(part, datetime):
        part = part if part.tzinfo is None else part.astimezone(UTC)
        return quoted(part.isoformat(), name, plain)
    if isinstance(part, date):
        return quoted(part.isoformat(), name, plain)
    if isinstance(part, UUID):
        return quoted(str(part), name, plain)
    message = (
        f"{name} of a key is a {type(part).__name__}, whose text may be the same for different ones, or change: "
        "use a str, int, UUID, date or None that identifies it, such as its id"
    )
    raise TypeError(message)


def quoted(text: str, name: str, plain: str = PLAIN) -> str:
    """Percent-encode all that is neither a letter, a digit, nor in `plain`."""
    if text.isalnum():
        return text
    try:
        return "".join([each if each.isalnum() or each in plain else _percent(each) for each in text])
    except UnicodeEncodeError:
        message = f"{name} of a key contains a lone surrogate"
        raise ValueError(message) from None


def _percent(character: str) -> str:
    return "".join([f"%{byte:02X}" for byte in character.encode()])


def bounded(text: str) -> str:
    """Return a key that is not too long: of one that is, the end becomes a digest of all of it."""
    if len(text) <= MAX_KEY:
        return text
    import hashlib  # noqa: PLC0415 - seldom used, and the import takes a millisecond

    digest = f"#sha256={hashlib.sha256(text.encode()).hexdigest()}"  # no part has a "#"
    return text[: MAX_KEY - len(digest)] + digest
