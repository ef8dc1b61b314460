"""Keys and values that some encoding has got wrong somewhere."""

from __future__ import annotations

import random
from typing import Final

from caslock.store import MAX_VALUE

_LONG: Final = 100

# fmt: off
KEYS: Final = (
    "a", "A", "a b", "a%20b", "a+b", "a%2520b", " ", "  ", "a ", "%", "%41", "a:b", "a/b", "a\\b", "a_b", "a*", "a?",
    "[a]", "{a}", "{a}b", "'", '"', "'; DROP TABLE locks; --", "\0", "a\0b", "\t", "\n", "\r\n", "a\r\nb",
    "x\r\nflush_all\r\n", "x 0 0 0\r\n\r\n", "\x7f", "..", "../a", "é", "e\u0301", "ß", "SS", "\u0131", "ﬁ", "\u00a0",
    "\u2028", "\ufeff", "\uffff", "钥匙", "🔑", "🔑" * 300, "k" * 250, "k" * 251, "k" * 1024, "k" * 1023 + "l",
    "ü" * 1024, "ü" * 1023 + "u", " " * 1024, "\0" * 1024,
)
# fmt: on
"""Keys that some encoding cuts short, lets through as a command, or takes for one another."""

VALUES: Final = (
    *(b"", b"0", b" ", b"\0", b"\r\n", b"END\r\n", b"a\r\nb\r\n\r\n", b"1:2", b"1!gone"),
    *(
        b":",
        bytes(range(256)),
        b"\xff\xfe",
        b'{"caslock":1}',
        "钥匙".encode(),
        b"x" * 250,
        b"x" * MAX_VALUE,
        b"\r\n" * (MAX_VALUE // 2),
        bytes(MAX_VALUE),
    ),
    random.Random(0).randbytes(MAX_VALUE),  # noqa: S311 - the same bytes in every run
)


def salted(name: str, salt: str) -> tuple[str, ...]:
    """Make keys which no other run uses, that are as nasty as `name`."""
    return (salt + name, name + salt) if len(name) < _LONG else (salt + name[len(salt) :],)
