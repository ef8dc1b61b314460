"""Tests of the contract of a store: a store that breaks it fails the test that is meant for it."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections import OrderedDict
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pytest

from caslock.store import ABSENT, Entry, Store, Traits
from caslock.stores.memory import MemoryStore
from caslock.testing import StoreContract, steps
from caslock.testing.batching_contract import BatchingContract
from caslock.testing.life_contract import LifeContract
from caslock.testing.listing_contract import ListingContract
from caslock.testing.queueing_contract import QueueingContract
from caslock.testing.server_contract import ServerContract
from caslock.testing.steps import Clients
from caslock.testing.watching_contract import WatchingContract
from tests.support.lasting import Lasting
from tests.support.locations import until
from tests.support.watching import WatchingMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from caslock.store import Put, Removal
    from caslock.stores.memory import _Waiter


pytestmark = pytest.mark.long


class DeletesUnseen(MemoryStore):
    """Removes whatever is there."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        del version
        observed = self.get(key)
        return super().invalidate(key, observed.version if observed else ABSENT)


class ForgetsVersions(MemoryStore):
    """Begins to count again when a key has gone."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        observed = self.get(key)
        self._last = observed.version if observed else ABSENT
        return super().put_if_version(key, value, version, ttl)


class LooksFirst(MemoryStore):
    """Reads and writes in two steps."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        observed = self.get(key)
        if version != (observed.version if observed else ABSENT):
            return observed
        time.sleep(0.05)
        observed = self.get(key)
        return super().put_if_version(key, value, observed.version if observed else ABSENT, ttl)


class RefusesSilently(MemoryStore):
    """Does not show the loser what is there."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        observed = self.get(key)
        refused = version != (observed.version if observed else ABSENT)
        return None if refused else super().put_if_version(key, value, version, ttl)


class WritesTwice(MemoryStore):
    """Takes a put of what is there already for a renewal, whatever version it expects."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        observed = self.get(key)
        again = observed is not None and observed.value == value
        return super().put_if_version(key, value, observed.version if observed and again else version, ttl)


class RaisesTheDead(MemoryStore):
    """Lets a version renew a lease that is over."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version if self.get(key) else ABSENT, ttl)


class CountsWithNothing(MemoryStore):
    """Takes version 0 for "whatever is there"."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        observed = self.get(key)
        return super().put_if_version(key, value, version or (observed.version if observed else ABSENT), ttl)


class EndsEarly(MemoryStore):
    """Cuts leases to whole tenths of seconds."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version, max(0.01, int(ttl * 10 - 0.01) / 10))


class EndsLate(MemoryStore):
    """Ends leases a second after their time, and does not say so."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version, ttl + 1)


class EndsWhatItKeeps(MemoryStore):
    """Says that it ends no lease, and ends each."""

    def __init__(self) -> None:
        super().__init__()
        self.traits = self.traits._replace(expires=False)


class EndsWhatIsOverwritten(Lasting):
    """Says that it ends no lease, and ends those of entries that were written over."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        if version == ABSENT:
            return super().put_if_version(key, value, version, ttl)
        return self._below.put_if_version(key, value, version, ttl)


class AddsUp(MemoryStore):
    """Adds a renewal's lease to what is left."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        left = self._leases[key].ends - time.monotonic() if key in self._leases else 0.0
        return super().put_if_version(key, value, version, ttl + max(left, 0.0))


class TouchedByRefusals(MemoryStore):
    """Restarts the lease at a put that it refuses."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        if key in self._leases and self.get(key):
            self._leases[key] = self._leases[key]._replace(ends=time.monotonic() + ttl)
        return super().put_if_version(key, value, version, ttl)


class FoldsKeys(MemoryStore):
    """Spells keys in a way of its own."""

    def __init__(self, spell: Callable[[str], str]) -> None:
        super().__init__()
        self._spell = spell

    def get(self, key: str) -> Entry | None:
        return super().get(self._spell(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(self._spell(key), value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        return super().invalidate(self._spell(key), version)


class ChangesValues(MemoryStore):
    """Takes the white space off values, as a protocol of lines does."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value.strip(), version, ttl)


class CountsReads(MemoryStore):
    """Gives a new version to what is read."""

    def get(self, key: str) -> Entry | None:
        observed = super().get(key)
        return observed and super().put_if_version(key, observed.value, observed.version, 60.0)


class LinesUpForNothing(MemoryStore):
    """Waits without reading what is there."""

    def _line_up(self, key: str, waiter: _Waiter) -> bool:
        with self._mutex:
            self._lines.setdefault(key, OrderedDict())[waiter] = None
        return True


class TellsOfEveryPut(MemoryStore):
    """Ends the waits for a version when that is overwritten."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
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
        lines, self._lines = self._lines, {}
        answers = super().invalidate_many(removals)
        self._lines = lines
        return answers


class WaitsForNothing(MemoryStore):
    """Waits, and then leaves it to the caller to put."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        answer = super().put_when_absent(key, value, ttl, timeout)
        return super().invalidate(key, answer.version) if answer and answer.value == value else answer


class PushesIn(MemoryStore):
    """Lets a waiter put over whatever is there."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        observed = super().put_when_absent(key, value, ttl, timeout / 10_000)
        if observed is None or observed.value == value:
            return observed
        return self.put_if_version(key, value, observed.version, ttl)


class WakesAll(MemoryStore):
    """Wakes all waiters."""

    def _wake(self, key: str) -> bool:
        while super()._wake(key):
            pass
        return True


class ServesTheLast(MemoryStore):
    """Wakes the last waiter first."""

    def _wake(self, key: str) -> bool:
        if line := self._lines.get(key):
            line.move_to_end(next(reversed(line)), last=False)
        return super()._wake(key)


class NeverWaits(MemoryStore):
    """Puts at once."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        del timeout
        return self.put_if_version(key, value, ABSENT, ttl)


class Oversleeps(MemoryStore):
    """Waits by a clock of its own."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        return super().put_when_absent(key, value, ttl, timeout + 3 * steps.PATIENT)


class GivesUp(MemoryStore):
    """Does not put for a waiter whose time is over."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        begun = time.monotonic()
        answer = super().put_when_absent(key, value, ttl, timeout)
        over = time.monotonic() - begun >= timeout
        return super().invalidate(key, answer.version) if over and answer and answer.value == value else answer


class PutsAfterwards(MemoryStore):
    """Puts for a waiter that no longer waits."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        answer = super().put_when_absent(key, value, ttl, timeout)
        self._successor = (value, ttl)
        return answer

    def invalidate(self, key: str, version: int) -> Entry | None:
        answer = super().invalidate(key, version)
        if answer is None:
            self.put_if_version(key, self._successor[0], ABSENT, self._successor[1])
        return answer


class CountsTheWait(MemoryStore):
    """Takes the time of the wait off the lease."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        ends = time.monotonic() + ttl
        answer = super().put_when_absent(key, value, ttl, timeout)
        if answer is None or answer.value != value:
            return answer
        return self.put_if_version(key, value, answer.version, max(1e-9, ends - time.monotonic()))


class PutsOneByOne(MemoryStore):
    """Writes what it can of several."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        return [self.put_if_version(*put) for put in puts]


class RefusesAllSilently(MemoryStore):
    """Does not show the caller of `put_many` what is there."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        answers = super().put_many(puts)
        written = all(entry and entry.value == put.value for entry, put in zip(answers, puts, strict=True))
        return answers if written else [None] * len(puts)


class EndsTogether(MemoryStore):
    """Has one lease for several."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        return super().put_many([put._replace(ttl=max(put.ttl for put in puts)) for put in puts])


class WritesSeveralTwice(MemoryStore):
    """Takes puts of what is there already for renewals, whatever versions they expect."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        observed = [self.get(put.key) for put in puts]
        pairs = zip(puts, observed, strict=True)
        again = [put._replace(version=entry.version) for put, entry in pairs if entry and entry.value == put.value]
        return super().put_many(again if len(again) == len(puts) else puts)


class LooksFirstAtSeveral(MemoryStore):
    """Reads several and writes them in two steps."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        observed = [self.get(put.key) for put in puts]
        if [put.version for put in puts] != [entry.version if entry else ABSENT for entry in observed]:
            return observed
        answers = []
        for put in puts:
            time.sleep(0.001)
            answers.append(self.put_if_version(*put))
        return answers


class RemovesSeveralUnseen(MemoryStore):
    """Removes whatever is there, of several."""

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        observed = [self.get(removal.key) for removal in removals]
        pairs = zip(removals, observed, strict=True)
        return super().invalidate_many([removal._replace(version=entry.version) for removal, entry in pairs if entry])


class HasLittleRoom(MemoryStore):
    """Sends no more than a packet holds."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        return super().put_many(puts[:32])


class CountsDown(MemoryStore):
    """Gives versions that never repeat, and shrink."""

    def _write(self, key: str, value: bytes, ttl: float) -> Entry:
        self._last = (self._last or 2**40) - 2
        return super()._write(key, value, ttl)


def tells_all() -> MemoryStore:
    """Make a store that shows its password."""
    store = MemoryStore()
    store.traits = Traits("redis://user:secret@host:1/0")
    return store


class KeepsVersions(MemoryStore):
    """Gives an entry that is overwritten the same version again."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        answer = super().put_if_version(key, value, version, ttl)
        if version != ABSENT and answer is not None and answer.version == self._last:
            answer = answer._replace(version=version)
            self._leases[key] = self._leases[key]._replace(entry=answer)
        return answer


class ReadsOldValues(MemoryStore):
    """Reads from a replica to which overwriting has not come yet."""

    def __init__(self) -> None:
        super().__init__()
        self._replica = dict[str, Entry]()

    def get(self, key: str) -> Entry | None:
        observed = super().get(key)
        return observed and self._replica.setdefault(key, observed)


class WantsLongKeys(MemoryStore):
    """Takes a key of one character for none."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version, ttl) if len(key) > 1 else None


class MissesWhatWasBefore(WatchingMemory):
    """Listens without reading what is there."""

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        del key, version
        with self._changed:
            self._changed.wait(timeout)


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


class WatchesRemovalsOnly(WatchingMemory):
    """Does not see that an entry was overwritten."""

    def _has(self, key: str, version: int) -> bool:
        return self.get(key) is not None and version != ABSENT


class WakesOneWatcher(WatchingMemory):
    """Notifies only one of the watchers."""

    def __init__(self) -> None:
        super().__init__()
        self._changed.notify_all = self._changed.notify  # type: ignore[method-assign] # that is what is wrong with it


class NeverWatches(WatchingMemory):
    """Returns at once."""

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """Do nothing."""


class OversleepsItsWatch(WatchingMemory):
    """Waits by a clock of its own."""

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        super().wait_while(key, version, timeout + 3 * steps.PATIENT)


class RewritesWhatItWatches(WatchingMemory):
    """Writes to see whether a version is still there."""

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        super().wait_while(key, version, timeout)
        if (entry := self.get(key)) is not None:
            self.put_if_version(key, entry.value, version, 60)


class PutsWhatItWatched(WatchingMemory):
    """Puts for a client that no longer watches."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        answer = super().invalidate(key, version)
        self.put_if_version(key, b"mine", ABSENT, 60)
        return answer


class ProlongsWhatItWatches(WatchingMemory):
    """Keeps an entry alive that is watched."""

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        leases = self._memory._leases
        leases[key] = leases[key]._replace(ends=leases[key].ends + 100)
        super().wait_while(key, version, timeout)


class ListsBy(WatchingMemory):
    """Matches prefixes in a way of its own."""

    def __init__(self, matches: Callable[[str, str], object]) -> None:
        super().__init__()
        self._matches = matches

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        return (pair for pair in super().list("") if self._matches(pair[0], prefix))


class ListsWhatWasThere(WatchingMemory):
    """Lists removed and expired entries."""

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        return ((key, self.get(key) or Entry(b"", 1)) for key in self._keys if key.startswith(prefix))


class ListsNames(WatchingMemory):
    """Knows nothing of the entries that it lists."""

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        return ((key, Entry(b"", 1)) for key, _ in super().list(prefix))


class ListsOnePage(WatchingMemory):
    """Forgets that there is a second page."""

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        return islice(super().list(prefix), 100)


class ListsPagesTwice(WatchingMemory):
    """Lists the first page again, as a scan of a table that grows may."""

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        return chain(super().list(prefix), islice(super().list(prefix), 100))


class ListsWhatChanges(WatchingMemory):
    """Reads its keys one by one while others change them."""

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
    """Has one stored name for several keys."""

    def identify(self) -> str:
        return self.traits.location

    def stored_name(self, key: str) -> str:
        return key[:20]


class BadStore(NamedTuple):
    """A store that breaks the contract, and the test that sees it."""

    make: Callable[[], Store]
    test: str
    name: str = ""


EXACTLY = "test_a_list_has_exactly_the_keys_with_the_prefix"


def like(prefix: str) -> str:
    """Return a regular expression for what SQL's LIKE takes a prefix for."""
    return re.escape(prefix).replace("%", ".*").replace("_", ".")


BAD_STORES = [
    BadStore(DeletesUnseen, "test_a_stale_holder_cannot_remove_the_new_entry"),
    BadStore(DeletesUnseen, "test_a_late_removal_spares_the_new_entry"),
    BadStore(DeletesUnseen, "test_a_removal_can_be_retried_after_a_lost_reply"),
    BadStore(DeletesUnseen, "test_a_duplicated_request_is_applied_once"),
    BadStore(DeletesUnseen, "test_one_of_fifty_replaces_the_entry"),
    BadStore(ForgetsVersions, "test_a_stale_holder_cannot_remove_the_new_entry"),
    BadStore(ForgetsVersions, "test_a_stale_holder_cannot_overwrite_the_new_entry"),
    BadStore(ForgetsVersions, "test_an_expired_version_is_stale"),
    BadStore(ForgetsVersions, "test_versions_never_repeat"),
    BadStore(CountsDown, "test_versions_only_grow"),
    BadStore(LooksFirst, "test_one_of_fifty_creates_the_entry"),
    BadStore(LooksFirst, "test_one_of_fifty_overwrites_the_entry"),
    BadStore(LooksFirst, "test_no_update_is_lost"),
    BadStore(RefusesSilently, "test_a_refusal_returns_the_current_entry"),
    BadStore(RefusesSilently, "test_a_put_can_be_retried_after_a_lost_reply"),
    BadStore(WritesTwice, "test_a_put_can_be_retried_after_a_lost_reply"),
    BadStore(RaisesTheDead, "test_a_late_put_does_not_undo_a_removal"),
    BadStore(RaisesTheDead, "test_an_expired_version_is_stale"),
    BadStore(RaisesTheDead, "test_no_version_matches_where_there_is_no_entry"),
    BadStore(CountsWithNothing, "test_a_refusal_returns_the_current_entry"),
    BadStore(EndsEarly, "test_a_lease_lasts_for_its_ttl_and_ends"),
    BadStore(EndsLate, "test_a_lease_lasts_for_its_ttl_and_ends"),
    BadStore(EndsWhatItKeeps, "test_an_entry_outlasts_its_ttl_if_the_store_ends_no_lease"),
    BadStore(
        lambda: EndsWhatIsOverwritten(MemoryStore()),
        "test_an_entry_outlasts_its_ttl_if_the_store_ends_no_lease",
        "EndsWhatIsOverwritten",
    ),
    BadStore(AddsUp, "test_a_lease_lasts_for_its_ttl_and_ends"),
    BadStore(TouchedByRefusals, "test_a_lease_lasts_for_its_ttl_and_ends"),
    BadStore(lambda: FoldsKeys(str.lower), "test_any_text_is_a_key", "lower"),
    BadStore(lambda: FoldsKeys(str.casefold), "test_any_text_is_a_key", "casefold"),
    BadStore(lambda: FoldsKeys(str.strip), "test_any_text_is_a_key", "strip"),
    BadStore(lambda: FoldsKeys(unquote), "test_any_text_is_a_key", "unquote"),
    BadStore(lambda: FoldsKeys(lambda key: key[:250]), "test_any_text_is_a_key", "cut to 250"),
    BadStore(lambda: FoldsKeys(lambda key: key.partition("\0")[0]), "test_any_text_is_a_key", "cut at NUL"),
    BadStore(lambda: FoldsKeys(lambda key: key[:1024]), "test_a_key_that_is_too_long_is_not_cut", "cut"),
    BadStore(lambda: FoldsKeys(lambda key: key.partition(":")[0]), "test_keys_are_independent", "one shelf"),
    BadStore(ChangesValues, "test_any_bytes_are_a_value"),
    BadStore(CountsReads, "test_a_read_changes_nothing"),
    BadStore(tells_all, "test_the_traits_tell_the_same_to_every_client"),
    BadStore(KeepsVersions, "test_an_overwritten_version_is_stale"),
    BadStore(ReadsOldValues, "test_a_success_returns_the_written_entry"),
    BadStore(WantsLongKeys, "test_one_character_is_a_key"),
    BadStore(NamesItself, "test_two_clients_give_one_identity"),
    BadStore(NamesKeysAlike, "test_two_clients_give_one_identity"),
    BadStore(LooksAndThenListens, "test_a_removal_as_the_wait_begins_is_not_missed"),
    BadStore(MissesWhatWasBefore, "test_a_wait_for_a_version_that_is_gone_ends_at_once"),
    BadStore(WatchesRemovalsOnly, "test_a_wait_for_a_version_that_is_gone_ends_at_once"),
    BadStore(WatchesRemovalsOnly, "test_a_change_ends_every_wait"),
    BadStore(WakesOneWatcher, "test_a_change_ends_every_wait"),
    BadStore(NeverWatches, "test_a_wait_lasts_for_its_timeout_and_writes_nothing"),
    BadStore(OversleepsItsWatch, "test_a_wait_lasts_for_its_timeout_and_writes_nothing"),
    BadStore(RewritesWhatItWatches, "test_a_wait_lasts_for_its_timeout_and_writes_nothing"),
    BadStore(PutsWhatItWatched, "test_a_wait_lasts_for_its_timeout_and_writes_nothing"),
    BadStore(ProlongsWhatItWatches, "test_a_wait_does_not_prolong_the_lease"),
    BadStore(OversleepsItsWatch, "test_a_wait_does_not_prolong_the_lease"),
    BadStore(lambda: ListsBy(lambda key, prefix: fnmatchcase(key, f"{prefix}*")), EXACTLY, "patterns of Redis"),
    BadStore(lambda: ListsBy(lambda key, prefix: re.match(like(prefix), key, re.DOTALL)), EXACTLY, "LIKE"),
    BadStore(lambda: ListsBy(lambda key, prefix: key.lower().startswith(prefix.lower())), EXACTLY, "any case"),
    BadStore(lambda: ListsBy(lambda key, prefix: prefix in key), EXACTLY, "anywhere"),
    BadStore(lambda: ListsBy(lambda key, prefix: key.startswith(prefix.partition("\0")[0])), EXACTLY, "up to NUL"),
    BadStore(ListsNames, "test_a_list_has_what_get_returns"),
    BadStore(ListsWhatWasThere, "test_a_list_has_what_get_returns"),
    BadStore(ListsOnePage, "test_a_long_list_is_complete"),
    BadStore(ListsPagesTwice, "test_a_long_list_is_complete"),
    BadStore(ListsWhatChanges, "test_changes_while_a_list_is_read_do_no_harm"),
    BadStore(ListsOnItsConnection, "test_a_list_may_be_left_unfinished"),
    BadStore(LinesUpForNothing, "test_a_waiter_puts_at_once_where_there_is_no_entry"),
    BadStore(WaitsForNothing, "test_a_waiter_puts_at_once_where_there_is_no_entry"),
    BadStore(WakesNobody, "test_a_removal_ends_a_wait"),
    BadStore(WakesForOneOnly, "test_a_removal_ends_a_wait"),
    BadStore(WaitsForNothing, "test_a_removal_ends_a_wait"),
    BadStore(TellsOfEveryPut, "test_a_waiter_keeps_its_place_when_the_entry_is_overwritten"),
    BadStore(NeverWaits, "test_a_waiter_keeps_its_place_when_the_entry_is_overwritten"),
    BadStore(WakesNobody, "test_each_removal_wakes_one_waiter"),
    BadStore(WakesAll, "test_each_removal_wakes_one_waiter"),
    BadStore(ServesTheLast, "test_waiters_are_served_in_the_order_in_which_they_came"),
    BadStore(PushesIn, "test_ten_waiters_take_turns"),
    BadStore(NeverWaits, "test_a_wait_in_a_queue_ends_at_its_timeout"),
    BadStore(Oversleeps, "test_a_wait_in_a_queue_ends_at_its_timeout"),
    BadStore(PutsAfterwards, "test_a_wait_in_a_queue_ends_at_its_timeout"),
    BadStore(GivesUp, "test_a_waiter_puts_at_its_timeout_if_the_entry_has_expired"),
    BadStore(CountsTheWait, "test_the_lease_of_a_waiter_begins_with_its_write"),
    BadStore(PutsOneByOne, "test_several_puts_are_all_written_or_none"),
    BadStore(RefusesAllSilently, "test_several_puts_are_all_written_or_none"),
    BadStore(EndsTogether, "test_each_of_several_puts_has_its_own_lease"),
    BadStore(WritesSeveralTwice, "test_several_puts_can_be_retried_after_a_lost_reply"),
    BadStore(LooksFirstAtSeveral, "test_one_of_fifty_wins_several_keys"),
    BadStore(RemovesSeveralUnseen, "test_several_removals_each_need_their_version"),
    BadStore(HasLittleRoom, "test_fifty_keys_can_be_changed_together"),
]


def sentences_of(contract: type) -> list[str]:
    """Name the tests of the contract, or of a part of it."""
    return [name for name in dir(contract) if name.startswith("test_")]


def meets(store: Store, test: str) -> None:
    """Run one test of the contract on a store."""
    method = getattr(StoreContract(), test)
    given = {"caslock_clients": Clients(store, store, f"key:{uuid4().hex}"), "store": store}
    method(**{name: given[name] for name in inspect.signature(method).parameters})


@pytest.mark.parametrize("bad", BAD_STORES, ids=lambda bad: f"{bad.name or bad.make.__name__}-{bad.test}")
def test_a_store_that_breaks_the_contract_is_found_out(bad: BadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to break the contract fails the test that is meant for it."""
    monkeypatch.setattr(steps, "PATIENT", 1.0)  # the bad ones wait in vain
    with pytest.raises((AssertionError, pytest.fail.Exception, pytest.skip.Exception)) as found:
        meets(bad.make(), bad.test)
    assert not found.errisinstance(pytest.skip.Exception), "it was not tested"


def test_no_test_of_the_contract_is_idle() -> None:
    """Every test of the contract has been seen to fail, here or in test_server_contract_bites."""
    elsewhere = set(sentences_of(ServerContract)) | set(sentences_of(LifeContract))
    assert {bad.test for bad in BAD_STORES} == set(sentences_of(StoreContract)) - elsewhere


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
                meets(Plain(MemoryStore()), test)


def test_what_cannot_travel_together_is_skipped() -> None:
    """A store that answers None to every batch passes no test of batches: each is skipped."""

    class Apart(MemoryStore):
        def put_many(self, puts: Sequence[Put]) -> None:  # type: ignore[override] # BatchingStore allows None
            """Nothing travels together."""

        def invalidate_many(self, removals: Sequence[Removal]) -> None:  # type: ignore[override] # as above
            """Nothing travels together."""

    for test in sentences_of(BatchingContract):
        with pytest.raises(pytest.skip.Exception, match="answered None"):
            meets(Apart(), test)


def test_without_a_server_its_failures_are_skipped() -> None:
    """Where there is no server, each test of a server that fails is skipped, and none counts as passed."""
    for test in sentences_of(ServerContract):
        with pytest.raises(pytest.skip.Exception, match="no server"):
            getattr(StoreContract(), test)(None)
