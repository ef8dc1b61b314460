"""The contract of a store is itself on trial: a store that breaks it turns the test red that is meant for it."""

from __future__ import annotations

import inspect
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pytest

from caslock.store import ABSENT, Entry, Store, Traits
from caslock.stores.memory import MemoryStore
from caslock.testing import StoreContract, waiting_contract
from caslock.testing.batch_contract import BatchContract
from caslock.testing.waiting_contract import WaitingContract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import Put, Removal
    from caslock.stores.memory import _Waiter


class DeletesUnseen(MemoryStore):
    """Removes whatever stands."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove it."""
        del version
        standing = self.get(key)
        return super().invalidate(key, standing.version if standing else ABSENT)


class ForgetsVersions(MemoryStore):
    """Begins to count again when a key has gone."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Count from what stands."""
        standing = self.get(key)
        self._last = standing.version if standing else ABSENT
        return super().put_if_version(key, value, version, ttl)


class LooksFirst(MemoryStore):
    """Reads and writes in two steps."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Look, think, and write."""
        standing = self.get(key)
        if version != (standing.version if standing else ABSENT):
            return standing
        time.sleep(0.05)
        standing = self.get(key)
        return super().put_if_version(key, value, standing.version if standing else ABSENT, ttl)


class RefusesSilently(MemoryStore):
    """Does not tell a loser who stands."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write, or say nothing."""
        standing = self.get(key)
        refused = version != (standing.version if standing else ABSENT)
        return None if refused else super().put_if_version(key, value, version, ttl)


class WritesTwice(MemoryStore):
    """Takes a put of what stands already for a renewal, whatever version it expects."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write it again."""
        standing = self.get(key)
        again = standing is not None and standing.value == value
        return super().put_if_version(key, value, standing.version if standing and again else version, ttl)


class RaisesTheDead(MemoryStore):
    """Lets a version renew a lease that is over."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write where nothing stands, too."""
        return super().put_if_version(key, value, version if self.get(key) else ABSENT, ttl)


class CountsWithNothing(MemoryStore):
    """Takes version 0 for "whatever stands"."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write over anything."""
        standing = self.get(key)
        return super().put_if_version(key, value, version or (standing.version if standing else ABSENT), ttl)


class EndsEarly(MemoryStore):
    """Cuts leases to whole tenths of seconds."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Round down."""
        return super().put_if_version(key, value, version, max(0.01, int(ttl * 10 - 0.01) / 10))


class EndsLate(MemoryStore):
    """Ends leases a second after their time, and does not say so."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Add a second."""
        return super().put_if_version(key, value, version, ttl + 1)


class AddsUp(MemoryStore):
    """Adds a renewal's lease to what is left."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Add."""
        left = self._leases[key].ends - time.monotonic() if key in self._leases else 0.0
        return super().put_if_version(key, value, version, ttl + max(left, 0.0))


class TouchedByRefusals(MemoryStore):
    """Begins the lease anew for a put that it refuses."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Touch what stands."""
        if key in self._leases and self.get(key):
            self._leases[key] = self._leases[key]._replace(ends=time.monotonic() + ttl)
        return super().put_if_version(key, value, version, ttl)


class FoldsKeys(MemoryStore):
    """Spells keys in a way of its own."""

    def __init__(self, spell: Callable[[str], str]) -> None:
        """Take the spelling."""
        super().__init__()
        self._spell = spell

    def get(self, key: str) -> Entry | None:
        """Read."""
        return super().get(self._spell(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write."""
        return super().put_if_version(self._spell(key), value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove."""
        return super().invalidate(self._spell(key), version)


class ChangesValues(MemoryStore):
    """Takes the white space off values, as a protocol of lines does."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write what is left."""
        return super().put_if_version(key, value.strip(), version, ttl)


class CountsReads(MemoryStore):
    """Gives a new version to what is read."""

    def get(self, key: str) -> Entry | None:
        """Read and write."""
        standing = super().get(key)
        return standing and super().put_if_version(key, standing.value, standing.version, 60.0)


class LinesUpForNothing(MemoryStore):
    """Waits without a look at what stands."""

    def _line_up(self, key: str, waiter: _Waiter) -> bool:
        with self._mutex:
            self._lines.setdefault(key, OrderedDict())[waiter] = None
        return True


class TellsOfEveryPut(MemoryStore):
    """Ends the waits for a version when that is overwritten."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write, and wake whoever waits."""
        answer = super().put_if_version(key, value, version, ttl)
        if version != ABSENT:
            while self._wake(key):
                pass
        return answer


class WakesNobody(MemoryStore):
    """Removes in silence."""

    def _wake(self, key: str) -> bool:
        del key
        return False


class WakesForOneOnly(MemoryStore):
    """Removes several in silence."""

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """Remove them."""
        lines, self._lines = self._lines, {}
        answers = super().invalidate_many(removals)
        self._lines = lines
        return answers


class WaitsAlone(MemoryStore):
    """Does one thing at a time, and a wait is one."""

    def __init__(self) -> None:
        super().__init__()
        self._connection = threading.RLock()

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove."""
        with self._connection:
            return super().invalidate(key, version)

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Wait."""
        with self._connection:
            return super().put_when_free(key, value, ttl, timeout)


class WaitsForNothing(MemoryStore):
    """Waits, and then leaves it to the caller to put."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Wait, and look."""
        answer = super().put_when_free(key, value, ttl, timeout)
        return super().invalidate(key, answer.version) if answer and answer.value == value else answer


class PushesIn(MemoryStore):
    """Lets who has waited put over whatever stands."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Wait, and write."""
        standing = super().put_when_free(key, value, ttl, timeout / 10_000)
        if standing is None or standing.value == value:
            return standing
        return self.put_if_version(key, value, standing.version, ttl)


class WakesAll(MemoryStore):
    """Lets all run that wait."""

    def _wake(self, key: str) -> bool:
        while super()._wake(key):
            pass
        return True


class NeverWaits(MemoryStore):
    """Puts at once."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Put."""
        del timeout
        return self.put_if_version(key, value, ABSENT, ttl)


class Oversleeps(MemoryStore):
    """Waits by a clock of its own."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Wait."""
        return super().put_when_free(key, value, ttl, timeout + waiting_contract.PATIENT / 2)


class GivesUp(MemoryStore):
    """Puts for nobody whose time is over."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Wait, and look."""
        begun = time.monotonic()
        answer = super().put_when_free(key, value, ttl, timeout)
        over = time.monotonic() - begun >= timeout
        return super().invalidate(key, answer.version) if over and answer and answer.value == value else answer


class PutsAfterwards(MemoryStore):
    """Puts for who has waited, though it waits no more."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Wait, and remember."""
        answer = super().put_when_free(key, value, ttl, timeout)
        self._heir = (value, ttl)
        return answer

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove, and put for who has waited."""
        answer = super().invalidate(key, version)
        if answer is None:
            self.put_if_version(key, self._heir[0], ABSENT, self._heir[1])
        return answer


class CountsTheWait(MemoryStore):
    """Takes the time of the wait off the lease."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Wait, and write for the rest."""
        ends = time.monotonic() + ttl
        answer = super().put_when_free(key, value, ttl, timeout)
        if answer is None or answer.value != value:
            return answer
        return self.put_if_version(key, value, answer.version, max(1e-9, ends - time.monotonic()))


class PutsOneByOne(MemoryStore):
    """Writes what it can of several."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write."""
        return [self.put_if_version(*put) for put in puts]


class RefusesAllSilently(MemoryStore):
    """Does not tell who puts several what stands there."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write, or say nothing."""
        answers = super().put_many(puts)
        written = all(entry and entry.value == put.value for entry, put in zip(answers, puts, strict=True))
        return answers if written else [None] * len(puts)


class EndsTogether(MemoryStore):
    """Has one lease for several."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write all for the longest time."""
        return super().put_many([put._replace(ttl=max(put.ttl for put in puts)) for put in puts])


class WritesSeveralTwice(MemoryStore):
    """Takes puts of what stands already for renewals, whatever versions they expect."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write them again."""
        standing = [self.get(put.key) for put in puts]
        pairs = zip(puts, standing, strict=True)
        again = [put._replace(version=entry.version) for put, entry in pairs if entry and entry.value == put.value]
        return super().put_many(again if len(again) == len(puts) else puts)


class LooksFirstAtSeveral(MemoryStore):
    """Reads several and writes them in two steps."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Look, think, and write."""
        standing = [self.get(put.key) for put in puts]
        if [put.version for put in puts] != [entry.version if entry else ABSENT for entry in standing]:
            return standing
        answers = []
        for put in puts:
            time.sleep(0.001)
            answers.append(self.put_if_version(*put))
        return answers


class RemovesSeveralUnseen(MemoryStore):
    """Removes whatever stands, of several."""

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """Remove it."""
        standing = [self.get(removal.key) for removal in removals]
        pairs = zip(removals, standing, strict=True)
        return super().invalidate_many([removal._replace(version=entry.version) for removal, entry in pairs if entry])


class HasLittleRoom(MemoryStore):
    """Sends no more than a packet holds."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write those that have room."""
        return super().put_many(puts[:32])


def tells_all() -> MemoryStore:
    """Make a store that tells its password."""
    store = MemoryStore()
    store.traits = Traits("redis://user:secret@host:1/0")
    return store


class BadStore(NamedTuple):
    """A store that breaks the contract, and the test that sees it."""

    make: Callable[[], MemoryStore]
    test: str
    name: str = ""


BAD_STORES = [
    BadStore(DeletesUnseen, "test_a_stale_holder_can_not_remove_what_another_has_put"),
    BadStore(DeletesUnseen, "test_a_removal_that_comes_late_does_nothing"),
    BadStore(DeletesUnseen, "test_a_removal_can_be_repeated_after_a_lost_reply"),
    BadStore(DeletesUnseen, "test_what_arrives_twice_is_applied_once"),
    BadStore(DeletesUnseen, "test_one_of_fifty_takes_over_from_one_of_fifty"),
    BadStore(ForgetsVersions, "test_a_stale_holder_can_not_remove_what_another_has_put"),
    BadStore(ForgetsVersions, "test_a_stale_holder_can_not_overwrite_what_another_has_put"),
    BadStore(ForgetsVersions, "test_no_version_comes_back_when_a_lease_has_ended"),
    BadStore(ForgetsVersions, "test_versions_never_repeat_and_only_grow"),
    BadStore(LooksFirst, "test_one_of_fifty_wins_what_nobody_holds"),
    BadStore(LooksFirst, "test_one_of_fifty_wins_a_version"),
    BadStore(LooksFirst, "test_no_update_is_lost"),
    BadStore(RefusesSilently, "test_a_refusal_is_answered_with_what_stands"),
    BadStore(RefusesSilently, "test_a_put_can_be_repeated_after_a_lost_reply"),
    BadStore(WritesTwice, "test_a_put_can_be_repeated_after_a_lost_reply"),
    BadStore(RaisesTheDead, "test_a_put_that_comes_after_the_removal_does_nothing"),
    BadStore(RaisesTheDead, "test_no_version_comes_back_when_a_lease_has_ended"),
    BadStore(RaisesTheDead, "test_nothing_is_done_to_nothing"),
    BadStore(CountsWithNothing, "test_a_refusal_is_answered_with_what_stands"),
    BadStore(EndsEarly, "test_a_lease_is_never_shorter_than_asked_and_ends"),
    BadStore(EndsLate, "test_a_lease_is_never_shorter_than_asked_and_ends"),
    BadStore(AddsUp, "test_a_lease_is_never_shorter_than_asked_and_ends"),
    BadStore(TouchedByRefusals, "test_a_lease_is_never_shorter_than_asked_and_ends"),
    BadStore(lambda: FoldsKeys(str.lower), "test_any_text_is_a_key", "lower"),
    BadStore(lambda: FoldsKeys(str.casefold), "test_any_text_is_a_key", "casefold"),
    BadStore(lambda: FoldsKeys(str.strip), "test_any_text_is_a_key", "strip"),
    BadStore(lambda: FoldsKeys(unquote), "test_any_text_is_a_key", "unquote"),
    BadStore(lambda: FoldsKeys(lambda key: key[:250]), "test_any_text_is_a_key", "cut to 250"),
    BadStore(lambda: FoldsKeys(lambda key: key.partition("\0")[0]), "test_any_text_is_a_key", "cut at NUL"),
    BadStore(lambda: FoldsKeys(lambda key: key[:1024]), "test_a_key_that_is_too_long_is_refused_or_kept_whole", "cut"),
    BadStore(lambda: FoldsKeys(lambda key: key.partition(":")[0]), "test_keys_do_not_touch_each_other", "one shelf"),
    BadStore(ChangesValues, "test_any_bytes_are_a_value"),
    BadStore(CountsReads, "test_a_read_changes_nothing"),
    BadStore(tells_all, "test_a_store_says_what_it_promises"),
    BadStore(LinesUpForNothing, "test_who_waits_where_nothing_stands_puts_at_once"),
    BadStore(WaitsForNothing, "test_who_waits_where_nothing_stands_puts_at_once"),
    BadStore(WakesNobody, "test_a_removal_ends_a_wait"),
    BadStore(WakesForOneOnly, "test_a_removal_ends_a_wait"),
    BadStore(WaitsAlone, "test_a_removal_ends_a_wait"),
    BadStore(WaitsForNothing, "test_a_removal_ends_a_wait"),
    BadStore(TellsOfEveryPut, "test_who_waits_goes_on_when_another_version_stands"),
    BadStore(NeverWaits, "test_who_waits_goes_on_when_another_version_stands"),
    BadStore(WakesNobody, "test_each_removal_wakes_one"),
    BadStore(WakesAll, "test_each_removal_wakes_one"),
    BadStore(PushesIn, "test_who_wait_take_turns"),
    BadStore(NeverWaits, "test_a_wait_ends_in_time"),
    BadStore(Oversleeps, "test_a_wait_ends_in_time"),
    BadStore(PutsAfterwards, "test_a_wait_ends_in_time"),
    BadStore(GivesUp, "test_who_has_waited_through_a_lease_puts"),
    BadStore(CountsTheWait, "test_the_lease_of_who_has_waited_begins_when_it_is_written"),
    BadStore(PutsOneByOne, "test_several_puts_are_all_written_or_none"),
    BadStore(RefusesAllSilently, "test_several_puts_are_all_written_or_none"),
    BadStore(EndsTogether, "test_each_of_several_puts_has_its_own_lease"),
    BadStore(WritesSeveralTwice, "test_several_puts_can_be_repeated_after_a_lost_reply"),
    BadStore(LooksFirstAtSeveral, "test_one_of_fifty_wins_several"),
    BadStore(RemovesSeveralUnseen, "test_several_removals_touch_only_what_matches"),
    BadStore(HasLittleRoom, "test_fifty_keys_can_travel_together"),
]


def sentences_of(contract: type) -> list[str]:
    """Name the tests of the contract, or of a part of it."""
    return [name for name in dir(contract) if name.startswith("test_")]


def meets(store: Store, test: str) -> None:
    """Run one test of the contract on a store."""
    method = getattr(StoreContract(), test)
    given = {"mine": store, "theirs": store, "store": store, "key": f"key:{uuid4().hex}"}
    method(**{name: given[name] for name in inspect.signature(method).parameters})


@pytest.mark.parametrize("bad", BAD_STORES, ids=lambda bad: f"{bad.name or bad.make.__name__}-{bad.test}")
def test_a_store_that_breaks_the_contract_is_found_out(bad: BadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to break the contract turns the test red that is meant for it."""
    monkeypatch.setattr(waiting_contract, "PATIENT", 1.0)  # the bad ones wait in vain
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        meets(bad.make(), bad.test)


def test_no_test_of_the_contract_is_idle() -> None:
    """All but the plainest tests of the contract have been seen red."""
    tests = set(sentences_of(StoreContract))
    plain = {
        "test_a_version_that_was_overwritten_is_stale",
        "test_success_is_answered_with_what_was_written",
        "test_the_shortest_keys_are_keys",
    }
    assert {bad.test for bad in BAD_STORES} == tests - plain


def test_what_a_store_can_not_do_is_not_asked_of_it() -> None:
    """A store of the three verbs alone passes every test of what is beyond them."""

    class Plain:
        def __init__(self, memory: MemoryStore) -> None:
            self.traits = memory.traits
            self.get, self.put_if_version, self.invalidate = memory.get, memory.put_if_version, memory.invalidate

    for test in sentences_of(WaitingContract) + sentences_of(BatchContract):
        meets(Plain(MemoryStore()), test)
