"""What is written under a key, and what is made of values that caslock did not write."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

import pytest

from caslock.protocol.record import FORM, Record, decode, encode

RECORD: Final = Record(
    "host:1", ("a.1", "a.2"), 30.0, "a.1.4", 17, 2.5, "2026-01-01T00:00:00+00:00", "host", 7, 'a "note"'
)


@pytest.mark.parametrize("holds", [(), ("a.1",), ("a.1", "b.7", 'c"\n.3')])
@pytest.mark.parametrize("fence", [None, 17])
def test_what_is_written_is_read(holds: tuple[str, ...], fence: int | None) -> None:
    """A record survives its bytes, which are JSON."""
    record = RECORD._replace(holds=holds, fence=fence)
    assert decode(encode(record)) == record
    assert json.loads(encode(record))["holds"] == list(holds)
    assert record.free == (not holds)


def test_numbers_of_another_writer_are_read_as_ours() -> None:
    """JSON has one kind of number: a ttl without a fraction is a float here, and a fence with one is whole."""
    fields = json.loads(encode(RECORD)) | {"ttl": 30, "quarantine": 0, "fence": 17.0, "holds": ["a.1", 5]}
    record = decode(json.dumps(fields).encode())
    assert (record.ttl, record.quarantine, record.fence, record.holds) == (30.0, 0.0, 17, ("a.1", "5"))
    assert [type(value) for value in (record.ttl, record.quarantine, record.fence)] == [float, float, int]


WRONG = (
    f'"caslock":{FORM + 1} "form":{FORM} "owner":5 "write":null "since":5 "host":[] "note":1.5 "pid":"7" "pid":null '
    '"ttl":"much" "ttl":NaN "ttl":Infinity,"quarantine":Infinity "quarantine":-Infinity "fence":[] "holds":5 "more":"x"'
)


@pytest.mark.parametrize("change", WRONG.split())
def test_what_is_not_quite_a_record_is_foreign(change: str) -> None:
    """It is held by an unknown owner, so that nobody writes over it."""
    record = decode(json.dumps(json.loads(encode(RECORD)) | json.loads(f"{{{change}}}")).encode())
    assert record.foreign
    assert not record.free
    assert (record.owner, record.holds, record.ttl) == ("unknown", ("unknown",), 0.0)


def test_a_record_says_who_holds_the_key() -> None:
    """Nobody, an owner with all that is known of it, or somebody that caslock does not know."""
    free = RECORD._replace(holds=()), *RECORD._replace(owner="", holds=()).each
    assert [str(each) for each in free] == ["nobody", "nobody"]
    assert str(RECORD._replace(note="")) == (
        "host:1 (pid 7 on host) since 2026-01-01T00:00:00+00:00, with a lease of 30 s from its last renewal"
    )
    assert str(RECORD).startswith('host:1 (pid 7 on host) (a "note") since ')
    assert str(decode(b"x" * 70)) == f"an unknown owner (caslock did not write the value {b'x' * 60!r})"


def test_a_record_prints_no_control_characters() -> None:
    """Another client may have written them; all else is printed as it is."""
    assert str(RECORD._replace(note="a\x1b[2Jb")).startswith("host:1 (pid 7 on host) (a\\x1b[2Jb) since ")
    assert str(RECORD._replace(note="a\x1b[2Jb")).endswith("from its last renewal")
    assert "(Zoë \\ 'x')" in str(RECORD._replace(note="Zoë \\ 'x'"))


def test_the_time_of_a_record_is_for_people() -> None:
    """It is None where caslock did not write it."""
    assert RECORD.since == datetime(2026, 1, 1, tzinfo=UTC)
    assert RECORD._replace(since_iso="yesterday").since is None
