"""`caslock.key` makes keys from parts, and never the same key from parts of different texts."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import product
from typing import Any

import pytest

import caslock
from caslock.stores.memory import MemoryStore

NUMBER = uuid.UUID("6d0f8a9e-6f1c-4c55-9d3e-2b8f5a1c7e01")


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Plain(Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (("room", 42), "room:42"),
        (("room", 42, "user", NUMBER), f"room:42:user:{NUMBER}"),
        (("report", date(2026, 11, 22)), "report:2026-11-22"),
        (("mail", "ada@example.org"), "mail:ada@example.org"),
        (("straße", -7), "straße:-7"),
        (("a:b", "c"), "a%3Ab:c"),
        (("a", "b:c"), "a:b%3Ac"),
        (("50 %",), "50%20%25"),
        (("42",), "42"),
        (("a", None), "a:None"),
        (("", "''"), "'':%27%27"),
        ((True, "True"), "True:True"),
        ((datetime(2026, 11, 22, 5, tzinfo=timezone(timedelta(hours=2))),), "2026-11-22T03%3A00%3A00%2B00%3A00"),
        ((Colour.RED, Size.BIG), "red:3"),
    ],
)
def test_a_key_can_be_read(parts: tuple[Any, ...], key: str) -> None:
    """What is harmless stays as it is; the rest is percent-encoded, and an empty text is two apostrophes."""
    assert caslock.key(*parts) == key


def text_of(part: Any) -> str:  # noqa: ANN401 - of any type
    return part.isoformat() if isinstance(part, date) else str(part)


def test_different_texts_make_different_keys_and_the_same_texts_the_same() -> None:
    """Parts that only look alike make different keys; those of the same text, such as 1 and "1", make the same."""
    aware = datetime(2026, 11, 22, tzinfo=UTC)
    others = [0, 1, -1, 10, True, False, None, NUMBER, date(2026, 11, 22), aware, aware.replace(tzinfo=None)]
    texts = {text_of(other) for other in others}
    signs = ["", ":", "::", "%", "%3A", "'", "''", "a", "a:", ":a", "'a'", "é", "e\u0301", "#", " ", "%253A", "A", "\0"]
    parts: list[Any] = [*others, *sorted(texts), *signs]
    seen: dict[str, tuple[str, ...]] = {}
    keys: dict[tuple[str, ...], str] = {}
    for length in (1, 2, 3):
        for several in product(parts, repeat=length):
            told, key = tuple(map(text_of, several)), caslock.key(*several)
            assert seen.setdefault(key, told) == told
            assert keys.setdefault(told, key) == key
    assert len(seen) > 20_000


def test_long_keys_differ() -> None:
    """A key is at most 1,024 characters; of a longer one the end is a digest, and the beginning can still be read."""
    chance = random.Random(1)
    keys = set[str]()
    for length in range(1_000, 1_060):
        text = "x" * length
        keys |= {
            caslock.key("file", text),
            caslock.key("file", f"{text}{chance.random()}"),
            caslock.key("file", text, 1),
        }
    keys |= {caslock.key("ü" * 5000), caslock.key(":" * 5000), caslock.key(*range(1000))}
    assert len(keys) == 3 * 60 + 3
    assert all(len(key) <= 1024 for key in keys)
    long = caslock.key("file", "x" * 5000)
    assert (len(long), long[:10]) == (1024, "file:xxxxx")
    with caslock.Lock(MemoryStore(), long):
        pass


def test_the_same_moment_is_the_same_part() -> None:
    """Aware datetimes of one moment are equal, whatever their zones are."""
    utc = datetime(2026, 11, 22, 3, tzinfo=UTC)
    assert caslock.key(utc) == caslock.key(utc.astimezone(timezone(timedelta(hours=5))))


class Model:
    id = 7


@pytest.mark.parametrize("part", [1.5, Decimal(1), b"x", Model(), Model, Plain.ONE, ("a", 1), ["a"], {"a"}, lambda: 1])
def test_a_part_that_may_not_be_told_from_others_is_refused(part: Any) -> None:  # noqa: ANN401 - of any type
    """A float, bytes, a container or an object is no part: the error says which part it is, and what to pass."""
    with pytest.raises(TypeError, match=r"part 2 of a key is a \w+, .*use a str, int, UUID, date or None"):
        caslock.key("room", part)


def test_no_part_and_no_text_are_refused() -> None:
    """A key has at least one part, and can be encoded."""
    with pytest.raises(TypeError, match="at least one part"):
        caslock.key()
    with pytest.raises(ValueError, match="part 1 of a key contains a lone surrogate"):
        caslock.key("\ud800")
