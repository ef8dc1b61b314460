"""Tests of the contract of a store: a store that breaks it fails the test that is meant for it."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar
from urllib.parse import unquote
from uuid import uuid4

import pytest

from caslock.store import Entry, Store
from caslock.stores.memory import MemoryStore
from caslock.testing import StoreContract, steps
from caslock.testing.batching_contract import BatchingContract
from caslock.testing.life_contract import LifeContract
from caslock.testing.listing_contract import ListingContract
from caslock.testing.queueing_contract import QueueingContract
from caslock.testing.server_contract import ServerContract
from caslock.testing.steps import Clients
from caslock.testing.watching_contract import WatchingContract
from tests.proof.altered import wrong
from tests.proof.torture.stores import Apart
from tests.support.locations import until
from tests.support.watching import WatchingMemory

pytestmark = pytest.mark.long


def memory(defect: str, **changes: tuple[str, ...]) -> type[MemoryStore]:
    return wrong(MemoryStore, defect, **changes)


def watching(defect: str, **changes: tuple[str, ...]) -> type[WatchingMemory]:
    return wrong(WatchingMemory, defect, **changes)


DeletesUnseen = memory("removes whatever is there", _remove=(" or observed.version != version", ""))
ForgetsVersions = memory(
    "begins to count again when a key has gone",
    _write=("self._last += 1", "there = self._observed(key)\n    self._last = 1 + (there.version if there else 0)"),
)
RefusesSilently = memory("does not show the loser what is there", put_if_version=("return observed", "return None"))
WakesNobody = memory("removes in silence", _wake=("while line:", "while False:"))

RaisesTheDead = memory(
    "lets a version renew a lease that is over", put_if_version=("if version", "if observed and version")
)
KEEPS_NO_MUTEX = "with self._mutex:", "if True:"
LooksFirst = memory(
    "reads and writes in two steps",
    put_if_version=(*KEEPS_NO_MUTEX, "return self._write", "time.sleep(0.05)\n        return self._write"),
)
WaitsForNothing = memory(
    "waits, and then leaves it to the caller to put",
    put_when_absent=("return self.put_if_version(key, value, ABSENT, ttl)", "return self.get(key)"),
)
NeverWaits = memory("puts at once", put_when_absent=("self._line_up(key, waiter)", "False"))
SeesRemovalsOnly = watching("does not see that an entry was overwritten", _has=(" and observed.version == version", ""))
OversleepsItsWatch = watching("watches by a clock of its own", wait_while=("+ timeout", "+ timeout + 10"))


class FoldsKeys(MemoryStore):
    spell: ClassVar[staticmethod[[str], str]]

    def get(self, key: str) -> Entry | None:
        return super().get(self.spell(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(self.spell(key), value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        return super().invalidate(self.spell(key), version)


class ReadsOldValues(MemoryStore):
    """Reads from a replica to which overwriting has not come yet."""

    def __init__(self) -> None:
        super().__init__()
        self._replica = dict[str, Entry]()

    def get(self, key: str) -> Entry | None:
        observed = super().get(key)
        return observed and self._replica.setdefault(key, observed)


class TellsWhatWasThere(WatchingMemory):
    """Reads as a wait begins, and tells that as it ends."""

    def wait_while(self, key: str, version: int, timeout: float) -> Entry | None:  # type: ignore[override]
        there = self.get(key)
        super().wait_while(key, version, timeout)
        return there


class LooksAndThenListens(WatchingMemory):
    """Misses what changes between its look and its listening; that happens in each wait."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = threading.Event()

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        if self._has(key, version):
            self._looked.set()
            until(lambda: not self._has(key, version))
            with self._changed:
                self._changed.wait(timeout)

    def invalidate(self, key: str, version: int) -> Entry | None:
        self._looked.wait(50)
        return super().invalidate(key, version)


class ListsBy(WatchingMemory):
    matches: ClassVar[staticmethod[[str, str], object]]

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        return (pair for pair in super().list("") if self.matches(pair[0], prefix))


class ListsWhatWasThere(WatchingMemory):
    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        return ((key, self.get(key) or Entry(b"", 1)) for key in self._keys if key.startswith(prefix))


class ListsWhatChanges(WatchingMemory):
    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        self._keys = {key: None for key in self._keys if self.get(key)}
        keys = [key for key in self._keys if key.startswith(prefix)]
        for place, key in enumerate(keys):
            if entry := self.get([key for key in self._keys if key.startswith(prefix) and self.get(key)][place]):
                yield key, entry


class ListsOnItsConnection(WatchingMemory):
    """Takes what is left of an unfinished list for the answer of the next request."""

    def __init__(self) -> None:
        super().__init__()
        self._unread = list[Entry]()

    def get(self, key: str) -> Entry | None:
        return self._unread.pop(0) if self._unread else super().get(key)

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        pairs = [*super().list(prefix)]
        self._unread = [entry for _, entry in pairs]
        for key, entry in pairs:
            self._unread.pop(0)
            yield key, entry


class NamesItself(MemoryStore):
    """Gives a name of its own for that of its server."""

    def identify(self) -> str:
        return uuid4().hex

    def stored_name(self, key: str) -> str:
        return key


class NamesKeysAlike(NamesItself):
    def identify(self) -> str:
        return self.traits.location

    def stored_name(self, key: str) -> str:
        return key[:20]


def folds(how: str, spell: Callable[[str], str]) -> type[FoldsKeys]:
    return type(how, (FoldsKeys,), {"spell": staticmethod(spell)})


def lists(how: str, matches: Callable[[str, str], object]) -> type[ListsBy]:
    return type(how, (ListsBy,), {"matches": staticmethod(matches)})


def like(prefix: str) -> str:
    """Return a regular expression for what SQL's LIKE takes a prefix for."""
    return re.escape(prefix).replace("%", ".*").replace("_", ".")


BAD_STORES: dict[str, list[type[Store]]] = {
    "test_a_stale_holder_cannot_remove_the_new_entry": [DeletesUnseen, ForgetsVersions],
    "test_a_late_removal_spares_the_new_entry": [DeletesUnseen],
    "test_a_removal_can_be_retried_after_a_lost_reply": [DeletesUnseen],
    "test_a_duplicated_request_is_applied_once": [DeletesUnseen],
    "test_one_of_fifty_replaces_the_entry": [DeletesUnseen],
    "test_several_removals_each_need_their_version": [DeletesUnseen],
    "test_a_stale_holder_cannot_overwrite_the_new_entry": [ForgetsVersions],
    "test_an_expired_version_is_stale": [ForgetsVersions, RaisesTheDead],
    "test_versions_never_repeat": [ForgetsVersions],
    "test_versions_only_grow": [
        memory("gives versions that never repeat, and shrink", _write=("self._last += 1", "self._last -= 2"))
    ],
    "test_one_of_fifty_creates_the_entry": [LooksFirst],
    "test_one_of_fifty_overwrites_the_entry": [LooksFirst],
    "test_no_update_is_lost": [LooksFirst],
    "test_a_refusal_returns_the_current_entry": [
        RefusesSilently,
        memory("takes version 0 for whatever is there", put_if_version=("if version !=", "if version and version !=")),
    ],
    "test_a_put_can_be_retried_after_a_lost_reply": [
        RefusesSilently,
        memory(
            "takes a put of what is there already for a renewal, whatever version it expects",
            put_if_version=("if version", "if not (observed and observed.value == value) and version"),
        ),
    ],
    "test_a_late_put_does_not_undo_a_removal": [RaisesTheDead],
    "test_no_version_matches_where_there_is_no_entry": [RaisesTheDead],
    "test_a_lease_lasts_for_its_ttl_and_ends": [
        memory("cuts leases to tenths of seconds", _write=("+ ttl", "+ max(0.01, int(ttl * 10 - 0.01) / 10)")),
        memory("ends leases late", _write=("+ ttl", "+ ttl + 60")),  # later than any machine
        memory(
            "adds a renewal's lease to what is left",
            _write=("now + ttl", "ttl + max(now, self._leases[key].ends if key in self._leases else now)"),
        ),
        memory(
            "restarts the lease at a put that it refuses",
            put_if_version=(
                "return observed",
                "return observed and self._leases.update({key: _Lease(observed, self._clock() + ttl)}) or observed",
            ),
        ),
    ],
    "test_an_entry_outlasts_its_ttl_if_the_store_ends_no_lease": [
        memory("says that it ends no lease, and ends each", _begin=('hex}")', 'hex}", expires=False)')),
        memory(
            "says that it ends no lease, and ends those of entries that were written over",
            _begin=('hex}")', 'hex}", expires=False)'),
            _write=("now + ttl", "now + (ttl if key in self._leases else 1e9)"),
        ),
    ],
    "test_any_text_is_a_key": [
        folds("lower", str.lower),
        folds("casefold", str.casefold),
        folds("strip", str.strip),
        folds("unquote", unquote),
        folds("cut to 250", lambda key: key[:250]),
        folds("cut at NUL", lambda key: key.partition("\0")[0]),
    ],
    "test_a_key_that_is_too_long_is_not_cut": [folds("cut", lambda key: key[:1024])],
    "test_keys_are_independent": [folds("one shelf", lambda key: key.partition(":")[0])],
    "test_one_character_is_a_key": [
        memory("takes a key of one character for none", put_if_version=("if version", "if len(key) == 1 or version"))
    ],
    "test_any_bytes_are_a_value": [
        memory("takes white space off, as lines do", _write=("Entry(value,", "Entry(value.strip(),"))
    ],
    "test_a_read_changes_nothing": [
        memory(
            "gives a new version to what is read",
            get=("self._observed(key)", "(it := self._observed(key)) and self._write(key, it.value, 60)"),
        )
    ],
    "test_the_traits_tell_the_same_to_every_client": [
        memory("shows its password", _begin=('f"memory://{uuid4().hex}"', '"redis://user:secret@host:1/0"'))
    ],
    "test_an_overwritten_version_is_stale": [
        memory(
            "gives an entry that is overwritten the same version again",
            _write=("self._last)", "self._leases[key].entry.version if key in self._leases else self._last)"),
        )
    ],
    "test_a_success_returns_the_written_entry": [ReadsOldValues],
    "test_two_clients_give_one_identity": [NamesItself, NamesKeysAlike],
    "test_a_removal_as_the_wait_begins_is_not_missed": [LooksAndThenListens],
    "test_a_wait_for_a_version_that_is_gone_ends_at_once": [
        watching(
            "listens without reading what is there",
            wait_while=(
                "while self._has(key, version) and (left := end - time.monotonic()) > 0",
                "for left in [timeout]",
            ),
        ),
        SeesRemovalsOnly,
    ],
    "test_a_change_ends_every_wait": [
        SeesRemovalsOnly,
        TellsWhatWasThere,
        watching(
            "notifies one of the watchers", invalidate=("notify_all", "notify"), put_if_version=("notify_all", "notify")
        ),
    ],
    "test_a_wait_lasts_for_its_timeout_and_writes_nothing": [
        watching("returns at once", wait_while=("time.monotonic() + timeout", "0.0")),
        OversleepsItsWatch,
        watching(
            "writes to see whether a version is still there",
            wait_while=("wait(left)", "wait(left) or self._memory.put_if_version(key, b'', version, 60)"),
        ),
        watching(
            "puts for a client that no longer watches",
            invalidate=("(key, version)", "(key, version) or self._memory.put_if_version(key, b'', 0, 60) and None"),
        ),
    ],
    "test_a_wait_does_not_prolong_the_lease": [
        OversleepsItsWatch,
        watching(
            "keeps an entry alive that is watched",
            wait_while=("end =", "self._memory.put_if_version(key, b'kept', version, 100)\n    end ="),
        ),
    ],
    "test_a_list_has_exactly_the_keys_with_the_prefix": [
        lists("patterns of Redis", lambda key, prefix: fnmatchcase(key, f"{prefix}*")),
        lists("LIKE", lambda key, prefix: re.match(like(prefix), key, re.DOTALL)),
        lists("any case", lambda key, prefix: key.lower().startswith(prefix.lower())),
        lists("anywhere", lambda key, prefix: prefix in key),
        lists("up to NUL", lambda key, prefix: key.startswith(prefix.partition("\0")[0])),
    ],
    "test_a_list_has_what_get_returns": [
        watching("does not know the entries that it lists", list=("key, entry", "key, type(entry)(b'', 1)")),
        ListsWhatWasThere,
    ],
    "test_a_long_list_is_complete": [
        watching("forgets that there is a second page", list=("tuple(self._keys)", "tuple(self._keys)[:100]")),
        watching("lists the first page again", list=("tuple(self._keys)", "[*self._keys, *[*self._keys][:100]]")),
    ],
    "test_changes_while_a_list_is_read_do_no_harm": [ListsWhatChanges],
    "test_a_list_may_be_left_unfinished": [ListsOnItsConnection],
    "test_a_waiter_puts_at_once_where_there_is_no_entry": [
        memory("waits without reading what is there", _line_up=("self._observed(key) is None", "False")),
        WaitsForNothing,
    ],
    "test_a_removal_ends_a_wait": [
        WaitsForNothing,
        WakesNobody,
        memory("removes several in silence", invalidate_many=("return", "self._lines.clear()\n        return")),
    ],
    "test_a_waiter_keeps_its_place_when_the_entry_is_overwritten": [
        memory(
            "ends the waits for a version when that is overwritten",
            _write=(
                "self._last += 1",
                "while key in self._leases and self._wake(key):\n        pass\n    self._last += 1",
            ),
        ),
        NeverWaits,
    ],
    "test_a_wait_in_a_queue_ends_at_its_timeout": [
        NeverWaits,
        memory("waits by a clock of its own", put_when_absent=("max(timeout, 0.0)", "timeout + 10")),
        memory(
            "puts for a waiter that has gone", _remove=("return WOKEN", "self._write(key, b'', 60)\n    return WOKEN")
        ),
    ],
    "test_each_removal_wakes_one_waiter": [WakesNobody, memory("wakes all waiters", _wake=("return True", "continue"))],
    "test_waiters_are_served_in_the_order_in_which_they_came": [
        memory("wakes the last waiter first", _wake=("last=False", "last=True"))
    ],
    "test_ten_waiters_take_turns": [
        memory(
            "lets a waiter put over whatever is there",
            put_when_absent=("self._line_up(key, waiter)", "False", "ABSENT", "getattr(self.get(key), 'version', 0)"),
        )
    ],
    "test_a_waiter_puts_at_its_timeout_if_the_entry_has_expired": [
        memory(
            "does not put for a waiter whose time is over",
            put_when_absent=(
                "gate.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))",
                "if not gate.acquire(timeout=timeout):\n                return self.get(key)",
            ),
        )
    ],
    "test_the_lease_of_a_waiter_begins_with_its_write": [
        memory(
            "takes the time of the wait off the lease",
            put_when_absent=(
                "gate = threading.Lock()",
                "gate, ends = threading.Lock(), self._clock() + ttl",
                "ABSENT, ttl",
                "ABSENT, ends - self._clock()",
            ),
        )
    ],
    "test_several_puts_are_all_written_or_none": [
        memory(
            "writes what it can of several",
            put_many=(*KEEPS_NO_MUTEX, "return observed", "return [self.put_if_version(*put) for put in puts]"),
        ),
        memory("does not show the losers what is there", put_many=("return observed", "return [None] * len(puts)")),
    ],
    "test_each_of_several_puts_has_its_own_lease": [
        memory("has one lease for several", put_many=("put.ttl", "max(each.ttl for each in puts)"))
    ],
    "test_several_puts_can_be_retried_after_a_lost_reply": [
        memory(
            "takes puts of what is there already for renewals, whatever versions they expect",
            put_many=(
                "if expected",
                "if [put.value for put in puts] != [x and x.value for x in observed] and expected",
            ),
        )
    ],
    "test_one_of_fifty_wins_several_keys": [
        memory(
            "reads several and writes them in two steps",
            put_many=(*KEEPS_NO_MUTEX, "[self._write", "[time.sleep(0.001) or self._write"),
        )
    ],
    "test_fifty_keys_can_be_changed_together": [
        memory("sends no more than a packet holds", put_many=("with", "puts = puts[:32]\n    with"))
    ],
}


def sentences_of(contract: type) -> list[str]:
    """Name the tests of the contract, or of a part of it."""
    return [name for name in dir(contract) if name.startswith("test_")]


def meets(make: Callable[[], Store], test: str, waits: Sequence[float] = (steps.IN_VAIN,)) -> None:
    method = getattr(StoreContract(), test)
    for seconds in waits:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "IN_VAIN", seconds)
            store = make()
            given = {"caslock_clients": Clients(store, store, f"key:{uuid4().hex}"), "store": store}
            method(**{name: given[name] for name in inspect.signature(method).parameters})


@pytest.mark.parametrize(
    ("test", "make"),
    [pytest.param(test, make, id=f"{test}-{make.__name__}") for test, makes in BAD_STORES.items() for make in makes],
)
def test_a_store_that_breaks_the_contract_is_found_out(
    test: str, make: type[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to break the contract fails the test that is meant for it."""
    monkeypatch.setattr(steps, "PATIENT", 1.0)
    with pytest.raises((AssertionError, pytest.fail.Exception, pytest.skip.Exception)) as found:
        meets(make, test, (3.0, 6.0, 12.0, 24.0, 48.0))  # allowances for a busy machine may hide a short wait
    assert not found.errisinstance(pytest.skip.Exception), "it was not tested"


def test_no_test_of_the_contract_is_idle() -> None:
    """Every test of the contract has been seen to fail, here or in test_server_contract_bites."""
    elsewhere = set(sentences_of(ServerContract)) | set(sentences_of(LifeContract))
    assert set(BAD_STORES) == set(sentences_of(StoreContract)) - elsewhere


def test_what_a_store_cannot_do_is_not_asked_of_it() -> None:
    """On a store of the three verbs alone, every test of what is beyond them is skipped, and none counts as passed."""

    class Plain:
        def __init__(self, memory: MemoryStore) -> None:
            self.traits = memory.traits
            self.get, self.put_if_version, self.invalidate = memory.get, memory.put_if_version, memory.invalidate

    beyond = {
        "wait_while": sentences_of(WatchingContract),
        "list": sentences_of(ListingContract),
        "identify": ["test_two_clients_give_one_identity"],
        "put_when_absent": sentences_of(QueueingContract),
        "put_many": sentences_of(BatchingContract),
        "close (for asyncio: aclose)": ["test_a_store_is_closed_by_with_and_may_be_closed_again"],
    }
    for verb, tests in beyond.items():
        for test in tests:
            with pytest.raises(pytest.skip.Exception, match=re.escape(f"the store has no {verb}")):
                meets(lambda: Plain(MemoryStore()), test)


def test_what_cannot_travel_together_is_skipped() -> None:
    """A store that answers None to every batch passes no test of batches: each is skipped."""
    kind = type("Alone", (Apart, MemoryStore), {})
    for test in sentences_of(BatchingContract):
        with pytest.raises(pytest.skip.Exception, match="answered None"):
            meets(kind, test)


def test_without_a_server_its_failures_are_skipped() -> None:
    """Where there is no server, each test of a server that fails is skipped, and none counts as passed."""
    for test in sentences_of(ServerContract):
        with pytest.raises(pytest.skip.Exception, match="no server"):
            getattr(StoreContract(), test)(None)
