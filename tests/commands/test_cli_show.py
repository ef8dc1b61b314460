"""``caslock show``, ``list``, ``break`` and ``top`` tell who holds what."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from caslock import ClosableStore, Lock, LockLost, ReadWriteLock, Semaphore
from caslock.cli import top
from caslock.stores.memory import MemoryStore
from tests.support.command_line import CASLOCK, AtTerminal, caslock, environment, finished, line, start
from tests.support.locations import fresh, present
from tests.support.servers import Server


def test_show_says_who_holds_a_key(url: str, store: ClosableStore) -> None:
    """Owner, process, note and fence, also as JSON; and status 1 when nobody does."""
    assert caslock("show", "key", store=url) == (1, f"nobody holds 'key' at {url}\n", "")
    code, output, _ = caslock("show", "key", "--json", store=url)
    assert (code, json.loads(output)) == (1, {"key": "key", "held": False, "kept": False, "handed_over": False})
    with Lock(store, "key", owner="me", note="why", ttl=60) as hold:
        code, output, _ = caslock("show", "key", store=url)
        assert code == 0
        rows = dict(each.split(maxsplit=1) for each in output.splitlines())
        told_again = {"key": "key", "state": "held", "owner": "me", "note": "why", "fence": str(hold.fence)}
        assert rows | told_again == rows
        assert rows["process"] == f"pid {os.getpid()} on {platform.node()}"
        assert re.fullmatch(r"20\d\d-.*Z \(\d+ (s|min) ago\)", rows["since"])
        told = json.loads(caslock("show", "key", "--json", store=url)[1])
        assert (told["owner"], told["note"], told["fence"], told["ttl"]) == ("me", "why", hold.fence, 60)
        assert (told["held"], told["kept"]) == (True, False)


def test_a_hold_that_was_handed_over_awaits_adoption(url: str, store: ClosableStore) -> None:
    """Text, table and JSON say so, until it is adopted."""
    ticket = present(Lock(store, "key", note="order 7", ttl=60).acquire()).hand_over()
    assert "\nstate    handed over, awaits adoption\n" in caslock("show", "key", store=url)[1]
    assert re.search(r"\nkey  handed over  .* order 7\n$", caslock("list", store=url)[1])
    told = json.loads(caslock("show", "key", "--json", store=url)[1])
    assert (told["held"], told["kept"], told["handed_over"], told["ttl"]) == (True, False, True, 60)
    with Lock.adopt(store, ticket):
        assert not json.loads(caslock("show", "key", "--json", store=url)[1])["handed_over"]
        assert re.search(r"\nkey  held  .* order 7\n$", caslock("list", store=url)[1])


def test_a_key_that_is_kept_by_min_hold_is_not_held(url: str, store: ClosableStore) -> None:
    """Its holder has released it, and nobody can have it: not held, but kept; and the status of a key that is taken."""
    with Lock(store, "key", min_hold=600):
        pass
    code, output, _ = caslock("show", "key", "--json", store=url)
    told = json.loads(output)
    assert (code, told["held"], told["kept"]) == (0, False, True)
    assert [told] == json.loads(caslock("list", "--json", store=url)[1])
    assert re.search(r"\nstate    kept: .* min_hold keeps it for [56]\d\d", caslock("show", "key", store=url)[1])
    assert re.search(r"\nkey  kept  ", caslock("list", store=url)[1])


def test_who_shares_a_key_is_told_one_by_one(url: str, store: ClosableStore) -> None:
    """Each hold of a semaphore and of a read-write lock has a row and a block, with what it has of the key."""
    with Semaphore(store, "seats", permits=3, note="a"), Semaphore(store, "seats", permits=3, note="b"):
        blocks = caslock("show", "seats", store=url)[1].split("\n\n")
        assert [re.findall("^(?:state|note) +(.*)$", block, re.MULTILINE) for block in blocks] == [
            ["slot 0 of 3", "a"],
            ["slot 1 of 3", "b"],
        ]
        assert re.search(r"\nseats  slot 0  .* a\nseats  slot 1  .* b\n$", caslock("list", store=url)[1])
    with ReadWriteLock(store, "prices").read, ReadWriteLock(store, "prices").read:
        assert caslock("list", store=url)[1].count("\nprices  reads  ") == 2


@pytest.mark.long
def test_list_has_the_held_keys_of_a_prefix(url: str, store: ClosableStore) -> None:
    """Free keys are left out; the JSON is what `show` has of each."""
    assert caslock("list", store=url) == (0, "", f"caslock: no key is held at {url}\n")
    assert caslock("list", "zzz", store=url) == (0, "", f"caslock: no key that begins with 'zzz' is held at {url}\n")
    assert caslock("list", "--json", store=url) == (0, "[]\n", "")
    assert Lock(store, "room:2").acquire()
    Lock(store, "room:2").force_release()
    with Lock(store, "room:1", note="one"), Lock(store, "user:3"):
        heading, *rows = caslock("list", store=url)[1].splitlines()
        assert heading.split() == ["KEY", "STATE", "HOST", "PID", "AGE", "OWNER", "NOTE"]
        assert [row.split()[0] for row in rows] == ["room:1", "user:3"]
        assert [row.split()[2:4] for row in rows] == [[platform.node(), str(os.getpid())]] * 2
        told = json.loads(caslock("list", "room:", "--json", store=url)[1])
        assert told == [json.loads(caslock("show", "room:1", "--json", store=url)[1])]


@pytest.mark.parametrize("value", [b"a plain text", b"99999999999999999999:{}"], ids=["text", "version too large"])
def test_list_has_what_another_program_has_written(redis_server: Server, value: bytes) -> None:
    """It keeps everybody from the key, as `show` says."""
    key = fresh()
    with redis.Redis.from_url(redis_server.url) as client:
        client.set(key, value, px=60_000)
        (told,) = json.loads(caslock("list", key, "--json", store=redis_server.url)[1])
        assert told == json.loads(caslock("show", key, "--json", store=redis_server.url)[1])
        assert (told["key"], told["owner"], told["held"]) == (key, "unknown", True)
        client.delete(key)


def test_a_long_note_does_not_break_the_table(url: str, store: ClosableStore) -> None:
    """At a terminal each key takes one line, and what is cut is marked; a pipe gets all of it."""
    with Lock(store, "key", note=200 * "x"):
        assert 200 * "x" in caslock("list", store=url)[1]
        with AtTerminal(*CASLOCK, "list", env=environment(url, COLUMNS="80")) as terminal:
            heading, row = terminal.read_until("…").splitlines()
            assert terminal.status() == 0
    assert heading.split()[0] == "KEY"
    assert len(row) == 80


def test_a_store_that_cannot_list_says_so(memcached_server: Server) -> None:
    """memcached can't list its keys: a sentence, and a status."""
    code, output, errors = caslock("list", "--store", memcached_server.url)
    assert (code, output) == (2, "")
    assert "can't list" in errors


def test_a_note_cannot_change_the_terminal(url: str, store: ClosableStore) -> None:
    """What others have written is shown without its control characters."""
    assert Lock(store, "key\a", note="\x1b[31mred\n\u202e").acquire()
    busy = ("run", "key\a", "--no-wait", "--", "true")
    for arguments in ("list",), ("show", "key\a"), busy, ("break", "key\a", "--yes"):
        _, output, errors = caslock(*arguments, store=url)
        assert "\\x1b[31mred\\n\\u202e" in (errors if arguments == busy else output)
        assert (output + errors).replace("\n", "").isprintable()


def test_break_takes_a_key_away(url: str, store: ClosableStore) -> None:
    """With --yes it does not ask; the holder learns of it; and status 1 when nobody holds the key."""
    assert caslock("break", "key", store=url) == (1, f"nobody holds 'key' at {url}\n", "")
    lock = Lock(store, "key", owner="me")
    hold = lock.acquire()
    assert hold
    code, output, errors = caslock("break", "key", store=url)
    assert (code, output, errors) == (2, "", "caslock: nobody is here to be asked: give --yes\n")
    assert lock.locked()
    code, output, errors = caslock("break", "key", "--yes", "--json", store=url)
    assert (code, json.loads(output)["owner"], errors) == (0, "me", "")
    assert not lock.locked()
    with pytest.raises(LockLost, match=r"force-released by pid \d+ on"):
        hold.release()


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_break_asks_first(answer: str, status: int, url: str, store: ClosableStore) -> None:
    """At a terminal it says who holds the key, and asks."""
    lock = Lock(store, "key", owner="me")
    assert lock.acquire()
    with AtTerminal(*CASLOCK, "break", "key", env=environment(url)) as terminal:
        terminal.read_until("me")
        terminal.read_until("[y/N]")
        terminal.type(f"{answer}\n")
        assert terminal.status() == status
    assert lock.locked() == (answer == "n")


def test_break_spares_a_later_holder(url: str, store: ClosableStore) -> None:
    """If the key has changed hands while the question waited for its answer, it is asked again."""
    hold = Lock(store, "key", owner="first").acquire()
    assert hold
    with AtTerminal(*CASLOCK, "break", "key", env=environment(url)) as terminal:
        assert "first" in terminal.read_until("[y/N]")
        hold.release()
        later = Lock(store, "key", owner="later")
        assert later.acquire()
        assert "later" in terminal.type("y\n", shows="[y/N]")
        terminal.type("n\n")
        assert terminal.status() == 1
    assert later.locked()


def test_top_shows_what_is_held(url: str, store: ClosableStore) -> None:
    """A table that follows what happens, until Ctrl-C."""
    with AtTerminal(*CASLOCK, "top", "--interval", "0.1", env=environment(url, TERM="xterm")) as terminal:
        terminal.read_until("0 held")
        with Lock(store, "room:1", owner="me", note="[bold]plain", ttl=45):
            terminal.read_until("1 held")
            shown = terminal.read_until("[bold]plain")
            assert all(told in shown for told in ("room:1", "me", "45 s"))
        terminal.read_until("0 held")
        with Lock(store, "room:2", min_hold=60):
            pass
        terminal.read_until("0 held, 1 kept")
        terminal.type("\x03")
        assert terminal.status() == 0


def test_top_tells_how_long_a_lease_can_last(url: str, store: ClosableStore) -> None:
    """It counts from the last renewal that it has seen; one JSON array is one look."""
    with Lock(store, "key", ttl=60, auto_renew=False) as hold:
        process = start("top", "--json", "--interval", "0.1", store=url)
        looks = [json.loads(line(process)) for _ in range(4)]
        left = [look[0]["left"] for look in looks]
        assert left[0] == 60
        assert left == sorted(left, reverse=True)
        assert left[-1] < 60
        hold.extend(50)
        while (look := json.loads(line(process)))[0]["ttl"] != 50:
            pass
        assert 49 < look[0]["left"] <= 50
        process.send_signal(signal.SIGINT)
        assert finished(process)[0] == 130


def test_top_tells_of_each_of_several_holders_how_long_its_lease_can_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is renewed, and has all of its lease; another one is not, though the record that both are in has changed."""
    passed = 100.0
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: passed))
    memory = MemoryStore()
    leases, pool = top.Leases(memory, ""), Semaphore(memory, "key", permits=2, ttl=30)
    renewed, dead = present(pool.acquire()), present(pool.acquire())
    assert [left for *_, left in leases.look()] == pytest.approx([30, 30], abs=1)
    passed += 20
    renewed.extend()
    left = {record.fence: left for _, record, left in leases.look()}
    assert left == {renewed.fence: pytest.approx(30, abs=1), dead.fence: pytest.approx(10, abs=1)}
    for hold in (renewed, dead):
        hold.release()


@pytest.mark.usefixtures("store")
def test_top_needs_a_terminal_and_a_reader_may_leave(url: str) -> None:
    """Without a terminal, top says what to use; and output that nobody reads is no error."""
    code, output, errors = caslock("top", store=url)
    assert (code, output, "caslock list" in errors) == (2, "", True)
    command = f"{' '.join(CASLOCK)} top --json --interval 0.1 | head -n 1"
    done = subprocess.run(["bash", "-c", command], env=environment(url), capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"[]\n", b"")


@pytest.mark.parametrize("command", ["show", "break", "list", "top", "doctor"])
def test_a_file_that_is_not_there_is_not_made(command: str, tmp_path: Path) -> None:
    """The path may be mistyped: status 2, and an error that names it."""
    path = tmp_path / "locsk.db"
    arguments = [command, *(["key"] if command in {"show", "break"} else []), "--json"]
    for given in ({"store": f"sqlite:///{path}"}, {}):
        options = [] if given else ["--store", f"sqlite:///{path}"]
        code, output, errors = caslock(*arguments, *options, **given)
        assert (code, output) == (2, "")
        assert f"there is no file {path}" in errors
    assert not path.exists()


@pytest.mark.parametrize("command", ["show", "break", "list", "top", "doctor"])
def test_a_store_that_is_away_is_told_in_one_line(command: str) -> None:
    """Status 2, and neither a traceback nor the password."""
    arguments = ["key"] if command in {"show", "break"} else []
    code, output, errors = caslock(command, *arguments, "--json", "--store", "redis://:hidden@127.0.0.1:1")
    assert (code, output, len(errors.splitlines())) == (2, "", 1)
    assert "is unreachable" in errors
    assert "hidden" not in errors
