"""What a server with TairString replies, command by command: the emulator keeps to it, and so does the real module.

The table was measured on the open-source module of November 2024, and has what caslock sends, and what may come of it.
Where the emulator has less, it says so by an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
import redis

from tests.support.locations import fresh
from tests.support.servers import TAIR_EMULATOR, Kind, Server

KEEPS, LOSES = "keeps a ttl of 60 s", "has no ttl"


class Row(NamedTuple):
    first: int | str | None
    """What the key holds: "v" with this version and a ttl of 60 s, another type, or nothing."""
    command: str
    """The command; {} is the key."""
    reply: object
    then: object
    """What EXGET replies after it."""
    ttl: str = ""


ROWS: Final = [
    Row(None, "EXGET {}", None, None),
    Row(7, "EXGET {}", [b"v", 7], [b"v", 7], KEEPS),
    Row(0, "EXGET {}", [b"v", 0], [b"v", 0], KEEPS),
    Row(7, "EXSET {} w PX 60000", b"OK", [b"w", 8], KEEPS),
    Row(7, "EXSET {} w ABS 5", b"OK", [b"w", 5], LOSES),
    Row(7, "EXSET {} w PX 60000 ABS 0", b"OK", [b"w", 0], KEEPS),
    Row(None, "EXSET {} w PX 60000 ABS 1795323935061021", b"OK", [b"w", 1795323935061021], KEEPS),
    Row(7, "EXSET {} w PX 1.5 ABS 5", "syntax error", [b"v", 7], KEEPS),
    Row(None, "EXCAS {} w 7 PX 60000", -1, None),
    Row(None, "EXCAS {} w 0 PX 60000", -1, None),
    Row(7, "EXCAS {} w 7 PX 60000", [b"OK", b"", 8], [b"w", 8], KEEPS),
    Row(0, "EXCAS {} w 0 PX 60000", [b"OK", b"", 1], [b"w", 1], KEEPS),
    Row(0, "EXCAS {} w 1 PX 60000", [b"CAS_FAILED", b"v", 0], [b"v", 0], KEEPS),
    Row(7, "EXCAS {} w 8 PX 1", [b"CAS_FAILED", b"v", 7], [b"v", 7], KEEPS),
    Row(7, "EXCAS {} w 0 PX 1", [b"CAS_FAILED", b"v", 7], [b"v", 7], KEEPS),
    Row(7, "EXCAS {} w x PX 1", "version should be integer", [b"v", 7], KEEPS),
    Row(7, "EXCAS {} w -1 PX 1", "syntax error", [b"v", 7], KEEPS),
    Row(7, "EXCAS {} w 7 PX 0", "syntax error", [b"v", 7], KEEPS),
    Row("string", "EXGET {}", "WRONGTYPE", "WRONGTYPE", KEEPS),
    Row("string", "EXSET {} w", "WRONGTYPE", "WRONGTYPE", KEEPS),
    Row("string", "EXCAS {} w 1 PX 1", "WRONGTYPE", "WRONGTYPE", KEEPS),
    Row(7, "DEL {}", 1, None),
]

LUA: Final = {
    "EXGET": ("return redis.call('EXGET', KEYS[1])", [b"v", 7]),
    "EXGET of nothing": ("return type(redis.call('EXGET', KEYS[2]))", b"boolean"),
    "EXCAS": ("local r = redis.call('EXCAS', KEYS[1], 'w', '7', 'PX', '9') return {r[1].ok, r[3]}", [b"OK", 8]),
    "EXCAS refused": (
        "local r = redis.call('EXCAS', KEYS[1], 'w', '6', 'PX', 9) return {r[1].ok, r[2]}",
        [b"CAS_FAILED", b"v"],
    ),
    "EXCAS of nothing": ("return redis.call('EXCAS', KEYS[2], 'w', '7', 'PX', 9)", -1),
    "EXSET": ("return redis.call('EXSET', KEYS[1], 'w', 'PX', 9, 'ABS', 5).ok", b"OK"),
    "pcall": ("return redis.pcall('EXCAS', KEYS[1], 'w', '-', 'PX', 9).err", b"ERR version should be integer"),
    "error": ("redis.call('EXCAS', KEYS[1], 'w', '-', 'PX', 9) return 5", "version should be integer"),
}


@pytest.fixture
def client(tair_server: Server) -> Iterator[redis.Redis]:
    """Give a plain client."""
    with redis.Redis(tair_server.host, tair_server.port) as client:
        yield client


def replied(client: Any, *command: object) -> Any:  # noqa: ANN401 - of any type
    """Give the reply to a command, or the text of its error."""
    try:
        return client.execute_command(*command)
    except redis.ResponseError as error:
        return str(error)


def filled(client: redis.Redis, first: int | str | None) -> str:
    key = fresh()
    if first == "string":
        client.set(key, "v")
    elif first is not None:
        assert replied(client, "EXSET", key, "v", "ABS", first) == b"OK"
    client.pexpire(key, 60_000)
    return key


def is_reply(found: object, expected: object) -> bool:
    """Whether a reply is the expected one; of an error, a part is enough."""
    return expected in found if isinstance(found, str) and isinstance(expected, str) else found == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.first} {row.command}")
def test_a_command_has_the_measured_reply(client: redis.Redis, row: Row) -> None:
    """Its reply, what is there after it, and what has become of the ttl."""
    key = filled(client, row.first)
    assert is_reply(replied(client, *row.command.format(key).split()), row.reply)
    assert is_reply(replied(client, "EXGET", key), row.then)
    if row.ttl:
        assert (client.pttl(key) > 0) is (row.ttl == KEEPS)
    client.delete(key)


@pytest.mark.parametrize("case", LUA)
def test_a_script_gets_the_same_replies(client: redis.Redis, case: str) -> None:
    """Inside of Lua, a status is a table with `ok`, nothing is false, and a refusal ends the script."""
    key, (script, expected) = filled(client, 7), LUA[case]
    for call in (client.eval, client.register_script(script)):
        given: Any = [script, 2, key, fresh()] if call == client.eval else [[key, fresh()]]
        try:
            found = call(*given)
        except redis.ResponseError as error:
            found = str(error)
        assert is_reply(found, expected)
        replied(client, "EXSET", key, "v", "ABS", 7)
    client.delete(key)


@pytest.mark.parametrize(
    "command", ["EXSET {} w KEEPTTL", "EXSET {} w NX", "EXSET {} w EX 5", "EXCAS {} w 7 KEEPTTL", "EXGET {} WITHFLAGS"]
)
def test_what_is_not_emulated_is_an_error(client: redis.Redis, tair: Kind, command: str) -> None:
    """The emulator never makes up a reply."""
    if tair is not TAIR_EMULATOR:
        pytest.skip("the module has it")
    key = filled(client, 7)
    assert "emulator" in replied(client, *command.format(key).split())
    assert replied(client, "EXGET", key) == [b"v", 7]
