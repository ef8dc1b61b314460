"""The table of planted bugs: what is wrong with each, and which layers have to catch it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import pytest
from pymemcache.client.base import Client

from caslock import Lock, aio
from caslock.local import multi, tickets
from caslock.local.hold import Holding
from caslock.local.holds import Holds
from caslock.local.lock_state import LockState
from caslock.local.multi import MultiAcquire
from caslock.local.queue import LocalQueue
from caslock.local.tasks import TaskRuntime
from caslock.local.threads import ThreadRuntime
from caslock.protocol import exchange as request
from caslock.protocol import lease as lease_module
from caslock.protocol import record
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import Lease
from caslock.protocol.sightings import Sightings
from caslock.protocol.transfer import Adoption
from caslock.protocol.writes import Writes
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memcached import requests as memcached_requests
from caslock.stores.memory import MemoryStore
from caslock.stores.redis.sockets import Sockets
from tests.api import test_fork_and_signals as forks
from tests.api import test_hand_over as hand_overs
from tests.api import test_multilock as multilocks
from tests.api import test_queue as queues
from tests.conftest import NewServer
from tests.proof import test_contract_bites as bad_stores
from tests.proof import test_laws_bite as laws_bite
from tests.proof import test_simulate_bites as simulate_bites
from tests.proof import test_torture as tortures
from tests.proof.altered import rewritten, wrong
from tests.proof.mutants import planted
from tests.proof.mutants.layers import Contract, Directed, Law, Mutant, Search, Seeds
from tests.rules import test_waiting as waits
from tests.stores import test_memcached as memcacheds
from tests.support import protocol_functions as protocol
from tests.support.locations import fresh, opened
from tests.support.servers import Server


def an_entry_lives_its_ttl(request: pytest.FixtureRequest) -> None:
    """Watch entries of a real memcached, begun at all phases of its clock."""
    with opened("memcached", request) as location:
        store = location.store()
        assert isinstance(store, MemcachedStore)
        memcacheds.test_an_entry_lives_its_ttl(store, fresh())


def a_restart(request: pytest.FixtureRequest) -> None:
    """Restart a real memcached, whose cas ids begin again."""
    new: NewServer = request.getfixturevalue("new_memcached")

    def client(server: Server) -> Client:
        return Client((server.host, server.port), timeout=5, default_noreply=False)

    with pytest.MonkeyPatch.context() as patch:
        memcacheds.test_a_restart_never_repeats_a_version(new, client, MemcachedStore.from_url, patch)


def nobody_is_stuck(request: pytest.FixtureRequest) -> None:
    """Torture MultiLocks in several processes, with the mutant in them if it is planted here."""
    is_planted = MultiAcquire.acquire is simulate_bites.take_every_turn_first
    tortures.torture_who_waits(request.getfixturevalue("tmp_path"), planted=is_planted)


def of_the_suite(test: Callable[..., None], kind: str = "", *arguments: object) -> Directed:
    """Take a test of the suite; `kind`: of the store that is its first argument."""

    def play(request: pytest.FixtureRequest) -> None:
        with opened(kind, request) if kind else nullcontext() as location:
            test(*([location] if kind else ()), *arguments)

    return Directed(test.__name__, play)


def law(scenario: str, **arguments: object) -> Law:
    """Name a scenario and its case."""
    return Law(scenario, tuple(arguments.items()))


CONTRACT: Final = Contract()
SEEDS: Final = Seeds()

NO_SECOND_LOOK: Final = "if successor.ending or not outgoing.pending:", "if False:"

MUTANTS: Final = (
    Mutant(
        "unconditional invalidate",
        "A removal takes whatever is there, not the version that it names.",
        (CONTRACT, law("test_release_is_right", kind="late request", clean=True)),
        make=bad_stores.DeletesUnseen,
    ),
    Mutant(
        "get-then-delete",
        "A release reads the entry and removes it, without checking whose it is.",
        (law("test_a_stale_holder_can_do_nothing", loss="another has it"), Seeds("has removed")),
        ((protocol, "withdraw", laws_bite.get_then_delete), (LockState, "begin_removal", laws_bite.not_at_once)),
    ),
    Mutant(
        "get-then-delete in a store",
        "A removal compares and deletes in two steps.",
        (CONTRACT,),
        make=planted.LooksBeforeItRemoves,
    ),
    Mutant(
        "a miss taken as a win",
        "After a write that got no answer, nothing there is read as ours.",
        (law("test_a_miss_after_a_refusal_is_not_a_win", answer="lost", then="it stays free"), SEEDS),
        (
            rewritten(
                request,
                "_again",
                "limit)\n    if",
                "limit)\n    if observed.record is None:\n        return Observed(1, record)\n    if",
            ),
        ),
        control=laws_bite.LONG_WAY,
    ),
    Mutant(
        "hold id shared over attempts",
        "All acquires of a Lock object have one hold id, so a late request of an earlier one is taken for the new one.",
        (Seeds("has a record"),),
        (rewritten(LockState, "_attempt", "next(self._numbers)", "0"),),
    ),
    Mutant(
        "owner name as identity",
        "A record with our owner's name is taken as proof that this attempt holds.",
        (SEEDS,),
        (rewritten(Attempt, "is_in", "self.hold_id in record.holds", "record.owner == self.owner"),),
    ),
    Mutant(
        "deadline from the reply",
        "A lease is counted from when the answer came, not from before the request.",
        (Seeds("believes"),),
        (rewritten(Lease, "believe", "end = landed.at", "end = now"),),
        control=laws_bite.LONG_WAY,
    ),
    Mutant(
        "extend that shortens late",
        "A shorter lease is believed once it is answered, not from when it is sent.",
        (law("test_a_shorter_lease_is_believed_when_it_is_sent"), Search("two processes, extending", 2, "believes")),
        (rewritten(Lease, "ask", "min(self.deadline, now + self.asked - margin(self.asked))", "self.deadline"),),
    ),
    Mutant(
        "extend that ends the renewals",
        "A shorter lease that was asked for, and got no answer, is not renewed any more.",
        (Seeds("nothing kept it from being renewed"),),
        (rewritten(Lease, "ask", "self.due = min(", "self.due = self.deadline if ttl is not None else min("),),
    ),
    Mutant(
        "extend that re-creates",
        "A renewal that finds nothing writes the record again.",
        (law("test_a_stale_holder_can_do_nothing", loss="it vanished"), SEEDS),
        ((protocol, "renew", planted.renew_or_create),),
    ),
    Mutant(
        "release without version",
        "memcached is sent `md` without the cas id.",
        (Contract("memcached"),),
        ((MemcachedStore, "invalidate", planted.remove_any_version),),
    ),
    Mutant(
        "versions that restart",
        "The count of versions begins again with each new entry of a key.",
        (CONTRACT, law("test_fences_only_grow")),
        make=bad_stores.ForgetsVersions,
    ),
    Mutant(
        "memcached versions that restart",
        "The cas id alone is the version: a restart begins again.",
        (Directed("test_a_restart_never_repeats_a_version", a_restart),),
        ((MemcachedStore, "_open", planted.origin_of_zero),),
    ),
    Mutant(
        "ttl missing on renewal",
        "What is written over an entry never ends.",
        (CONTRACT,),
        make=wrong(MemoryStore, "renews for ever", put_if_version=("value, ttl)", "value, 1e9 if version else ttl)")),
    ),
    Mutant(
        "ttl missing on renewal in the protocol",
        "A renewal is written without a ttl.",
        (law("test_extend_is_right", kind="lost reply"), Seeds("without a ttl")),
        (rewritten(Attempt, "next_record", "max(asked, observed.ttl) if others else asked", "NEVER"),),
    ),
    Mutant(
        "retry that counts twice",
        "A retry that finds its own record re-enters it, so one release is not enough.",
        (law("test_acquire_is_right", kind="lost reply"), SEEDS),
        ((protocol, "write_surely", planted.enter_again), laws_bite.EVERY_HOLD_LIVES),
        control=laws_bite.LONG_WAY,
    ),
    Mutant(
        "retry beyond its bound",
        "What got no answer is sent once more than asked.",
        (law("test_reads_and_writes_are_repeated_a_bounded_number_of_times"),),
        (rewritten(request, "_retry", ">= times", "> times"),),
    ),
    Mutant(
        "timeout taken as 'not acquired'",
        "No answer to an acquire is reported as held by somebody else.",
        (law("test_three_outcomes_are_never_mixed"), SEEDS),
        ((protocol, "write_surely", laws_bite.no_answer_is_busy),),
        control=laws_bite.LONG_WAY,
    ),
    Mutant(
        "timeout taken as 'released'",
        "No answer to a release is reported as released.",
        (law("test_release_is_right", kind="lost request", clean=True), Seeds("has released")),
        (
            rewritten(
                protocol,
                "settle",
                "    try:",
                "    if write.record is None:\n        return Observed(0, None)\n    try:",
            ),
        ),
    ),
    Mutant(
        "hold forgotten before the answer",
        "A release that got no answer can't be called again.",
        (law("test_release_is_right", kind="lost request", clean=True), SEEDS),
        (
            rewritten(
                protocol,
                "release",
                "_raise_unsettled(attempt,",
                "lease.record = None\n            _raise_unsettled(attempt,",
            ),
        ),
    ),
    Mutant(
        "fork keeps ownership",
        "A forked child believes in the holds of its parent, and releases them.",
        (of_the_suite(forks.test_a_child_that_leaves_the_block_frees_nothing, "sqlite", "the end"),),
        ((Holding, "_inherited", property(lambda _: False)), (LockState, "_begin", planted.never_forked)),
    ),
    Mutant(
        "connection kept after BaseException",
        "A memcached connection whose request was interrupted serves the next one.",
        (of_the_suite(forks.test_a_verb_interrupted_at_any_moment_leaves_no_stale_reply, "memcached", "get"),),
        ((MemcachedStore, "_open", planted.open_and_keep),),
    ),
    Mutant(
        "connection kept after BaseException by Redis",
        "The same with a Redis connection.",
        (of_the_suite(forks.test_a_verb_interrupted_at_any_moment_leaves_no_stale_reply, "redis", "get"),),
        ((Sockets, "give_up", planted.give_back_interrupted),),
    ),
    Mutant(
        "hand-over without a new fence",
        "A key that is handed over in a process keeps the fence of the last tenure.",
        (law("test_one_process_serves_all_its_waiters"), Seeds("fence")),
        (
            rewritten(
                protocol,
                "_first_put",
                "if rest is None",
                "if False",
                "version), now)",
                "version)._replace(fence=attempt.lease.fence), now)",
            ),
        ),
    ),
    Mutant(
        "MultiLock unsorted",
        "Several keys are taken in the order in which they are given.",
        (
            law("test_several_keys_are_all_or_nothing"),
            Seeds("wait for each other"),
            of_the_suite(multilocks.test_any_order_and_duplicates_are_one_lock, "memory"),
        ),
        ((multi, "sorted", list),),
    ),
    Mutant(
        "MultiLock that queues for every key first",
        "A MultiLock waits for its turn in the local queues of all its keys, and keeps them while it waits for one.",
        (Seeds("wait for each other"), Directed("who waits is not stuck", nobody_is_stuck, layer="torture")),
        ((MultiAcquire, "acquire", simulate_bites.take_every_turn_first),),
    ),
    Mutant(
        "next one in the local queue not woken",
        "An attempt that leaves the local queue lets the next one in, and does not wake it.",
        (Seeds("which nobody keeps from it"),),
        ((LocalQueue, "leave", simulate_bites.leave_in_silence),),
    ),
    Mutant(
        "MultiLock that leaks on the k-th failure",
        "When a later one of several keys can't be had, the first is not given back.",
        (law("test_several_keys_are_all_or_nothing"), Seeds("told to have failed")),
        (rewritten(MultiAcquire, "_roll_back", "in self.taken", "in self.taken[1:]"),),
    ),
    Mutant(
        "MultiLock that stops at the first failed release",
        "The release of several keys ends where one fails.",
        (law("test_several_keys_are_released_though_one_fails"), SEEDS),
        (rewritten(Holds, "_released", "failure = _worse(failure, error)", "raise"),),
    ),
    Mutant(
        "random fence",
        "A tenure's fence is drawn by chance.",
        (law("test_fences_only_grow"), Seeds("fence")),
        ((Attempt, "next_record", planted.fence_by_chance),),
    ),
    Mutant(
        "new fence at each renewal",
        "Renewals and re-entries leave the fence out, so it grows within a tenure.",
        (law("test_an_owner_enters_from_anywhere", order=(0, 1, 2)), Seeds("fence")),
        (rewritten(Attempt, "next_record", "fence=fence", "fence=None"),),
    ),
    Mutant(
        "memcached ttl without margin",
        "The exptime is the ttl, rounded up, though the server's clock lags and leaps.",
        (Directed("test_an_entry_lives_its_ttl", an_entry_lives_its_ttl),),
        ((memcached_requests, "math", planted.TTL_AS_ASKED),),
    ),
    Mutant(
        "free record treated as held",
        "An attempt that finds a record without holds waits for its end.",
        (law("test_force_release_is_right", kind="lost reply"), Seeds("although all is well")),
        (rewritten(Attempt, "may_take", "return True", "return record is None"),),
    ),
    Mutant(
        "held record treated as free",
        "Another owner's record is overwritten.",
        (law("test_busy_is_reported_as_busy", kind="lost request"), Seeds("believes")),
        ((Attempt, "may_take", laws_bite.take_anybodys),),
    ),
    Mutant(
        "foreign value treated as free",
        "What caslock did not write is overwritten.",
        (law("test_what_caslock_did_not_write_is_never_overwritten"),),
        ((record, "decode", laws_bite.unreadable_is_free),),
    ),
    Mutant(
        "thread name as identity",
        "A thread or task is known by its name, which is used again.",
        (law("test_a_name_that_is_used_again_is_nobody"),),
        (
            (ThreadRuntime, "me", lambda _: threading.current_thread().name),
            (TaskRuntime, "me", lambda _: (task := asyncio.current_task()) and task.get_name()),
            (aio, "calling_task", lambda: None),
        ),
    ),
    Mutant(
        "no drift margin",
        "A lease is believed for longer than the store keeps it.",
        (law("test_extend_is_right", kind="lost request"), Seeds("believes")),
        ((lease_module, "margin", lambda ttl: -0.5 * ttl),),
    ),
    Mutant(
        "failed acquire not made definite",
        "An acquire that ends in an error leaves what may be there, or land later.",
        (law("test_giving_up_is_for_certain"), Seeds("told to have failed")),
        ((protocol, "give_up", laws_bite.give_up_without_looking),),
    ),
    Mutant(
        "removal while a lost put may land",
        "A hold whose acquire left a request unanswered is released into nothing.",
        (law("test_acquire_is_right", kind="late request"), SEEDS),
        (laws_bite.LEAVE_NOTHING,),
        control=laws_bite.LONG_WAY,
    ),
    Mutant(
        "late request forgotten",
        "What got no answer is taken for lost.",
        (law("test_acquire_is_right", kind="late request"), SEEDS),
        ((Writes, "may_land", laws_bite.forget_what_was_sent),),
        control=laws_bite.LONG_WAY,
    ),
    Mutant(
        "re-entry that drops the other holds",
        "A re-entry elsewhere takes its owner's other holds for its own.",
        (law("test_an_owner_enters_from_anywhere", order=(0, 1, 2)), Seeds("has removed")),
        ((Attempt, "others", laws_bite.drop_others),),
    ),
    Mutant(
        "renewal that revives",
        "A renewal whose answer comes after the deadline makes a lost hold held again.",
        (Seeds("believes"),),
        ((protocol, "renew", planted.check_before_only),),
    ),
    Mutant(
        "renewal accepted under another fence",
        "A renewal that finds its own hold id in a later tenure goes on as if nothing had happened.",
        (law("test_a_late_request_does_not_revive_a_lost_hold"),),
        (rewritten(protocol, "_renewed", " or observed.fence != attempt.lease.fence", ""),),
    ),
    Mutant(
        "wait past the end of a lease",
        "A waiter sleeps on when the lease that it saw is over.",
        (of_the_suite(waits.test_a_wait_ends_with_the_lease_and_not_before),),
        (rewritten(protocol, "_wait", "limit if over else min(limit, ends)", "limit"),),
    ),
    Mutant(
        "loss not reported",
        "A loss that is noticed is not reported.",
        (law("test_loss_is_reported_to_the_block"), Seeds("was not told")),
        ((Lease, "tell", lambda _: None),),
    ),
    Mutant(
        "successor promised and forgotten",
        "A waiter of the process is promised the key, and never learns the outcome.",
        (Seeds("promised"),),
        (rewritten(LocalQueue, "name_successor", "attempt.turn.outgoing = HandOver", "HandOver"),),
    ),
    Mutant(
        "successor told too early",
        "A hand-over that got no answer is reported to the successor as done.",
        (SEEDS,),
        (rewritten(protocol, "hand_over", "settle()", "settle(Observed(lease.version + 1, write.record))"),),
    ),
    Mutant(
        "releaser told too early",
        "A hand-over that was refused is reported to the releaser as done.",
        (SEEDS,),
        (
            rewritten(
                protocol,
                "hand_over",
                "return there",
                "return there if successor.is_in(there.record) else Observed(0, None)",
            ),
        ),
    ),
    Mutant(
        "key handed to a waiter that has gone",
        "The releaser hands over without checking that its successor still waits.",
        (
            Search("two tasks, extending aside", word="told to have failed"),
            of_the_suite(queues.test_nothing_is_handed_over_to_one_that_has_gone_before),
        ),
        (
            rewritten(
                protocol,
                "_first_put",
                *NO_SECOND_LOOK,
                "outgoing.pending and fits and (taken or outgoing.take())",
                "fits",
            ),
        ),
    ),
    Mutant(
        "no second look as the key is handed over",
        "The releaser checks its successor before it notes what it sends, and not after.",
        (Search("two threads, racing", faults=2, word="told to have failed"),),
        (rewritten(protocol, "_first_put", *NO_SECOND_LOOK),),
    ),
    Mutant(
        "next one let in before the last has left",
        "The attempt after a successor that has gone is let in before the releaser has left.",
        (Search("three tasks of two Locks", word="which it had not"),),
        (rewritten(LocalQueue, "name_successor", "*self._inside, weakref", "weakref"),),
    ),
    Mutant(
        "successor named beside others that leave",
        "The hold of another Lock object of the same owner that is being released is not waited for.",
        (Search("three tasks of one owner", 0, "which it had not"),),
        (rewritten(LocalQueue, "name_successor", " or other.shared", ""),),
    ),
    Mutant(
        "hold id read after another thread has drawn one",
        "Two threads of one Lock object acquire at the same moment, and get one hold id.",
        (Search("two threads of one Lock, racing"),),
        (rewritten(LockState, "_attempt", "self._terms, hold", "self._terms, self.newest"),),
    ),
    Mutant(
        "extension by a loop that is gone",
        "A hold whose event loop was closed in an extension is renewed by the next loop for ever.",
        (Search("two tasks, extending aside", word="does not end"),),
        ((LockState, "renew", simulate_bites.watch_the_dead),),
    ),
    Mutant(
        "force_release of the next holder",
        "A `force_release` goes on until nobody holds the key.",
        (Search("two processes, breaking", 0, "who came after"),),
        ((protocol, "force_release", simulate_bites.break_whoever_comes),),
    ),
    Mutant(
        "inner release that frees the key",
        "One release is enough for all levels of re-entry.",
        (Search("two of one owner, again", 0, "believes"),),
        ((LockState, "release", simulate_bites.leave_for_all),),
    ),
    Mutant(
        "local queue never left",
        "An attempt that is over stays in the queue of its process.",
        (SEEDS,),
        ((LocalQueue, "leave", simulate_bites.never_leave),),
    ),
    Mutant(
        "batch of puts without an answer forgotten",
        "The puts of a MultiLock that travelled together and got no answer are taken for lost.",
        (Search("two processes, two keys", word="has released"),),
        (rewritten(protocol, "put_together", "unanswered(attempt, write.id, error)", "attempt.writes.drop(write.id)"),),
    ),
    Mutant(
        "batch of puts repeated key by key",
        "A MultiLock that meets free records writes them one by one, as if nothing were known of the others.",
        (Seeds("keys that nobody holds"),),
        (rewritten(protocol, "put_together", "known.get(attempt, NOTHING)", "NOTHING"),),
    ),
    Mutant(
        "quarantine that begins anew",
        "A quarantine is counted from the last record with it, so it never ends on a key in use.",
        (Seeds("made longer"),),
        (rewritten(Sightings, "see", "seen.over <= over", "False"),),
    ),
    Mutant(
        "batch of releases without an answer taken as released",
        "The releases of a MultiLock that travelled together and got no answer are taken for done.",
        (law("test_one_request_for_several_keys_without_an_answer"), SEEDS),
        ((protocol, "remove_together", planted.leave_at_no_answer),),
    ),
    Mutant(
        "interrupted clean-up forgotten",
        "An acquire whose clean-up was interrupted is forgotten, with its record.",
        (Seeds("has a record", most=3_000),),  # one in three hundred
        ((LockState, "undo", simulate_bites.forget_at_undo),),
    ),
    Mutant(
        "min_hold forgotten",
        "A release within `min_hold` removes the record.",
        (Seeds("min_hold"),),
        (rewritten(Attempt, "remainder", "if kept > 0", "if False"),),
    ),
    Mutant(
        "kept key taken by who has released it",
        "A record that is kept after its release is re-entered by its owner.",
        (Seeds("min_hold"),),
        (rewritten(Attempt, "may_take", "return ours", "return record.kept and record.owner == self.owner or ours"),),
    ),
    Mutant(
        "adoption that does not check the version",
        "A ticket's hold that has changed since it was read is taken all the same.",
        (
            Search("three processes, one ticket", 0, "have used one ticket"),
            of_the_suite(hand_overs.test_who_has_read_too_early_does_not_adopt, "memory", Lock),
        ),
        (rewritten(Adoption, "may_take", "is_in(record)", "is_in(record) or (self.writes.count and record.holds)"),),
    ),
    Mutant(
        "hand-over that goes on renewing",
        "Who has handed a hold over still renews it.",
        (
            Search("two processes, handing over", 1, "has handed over"),
            of_the_suite(hand_overs.test_nobody_renews_what_nobody_adopts, "memory"),
        ),
        ((tickets, "hand_over", planted.hand_over_and_renew),),
    ),
    Mutant(
        "ticket that can be used twice",
        "The fence of a ticket is enough, so it takes the hold from who has adopted it.",
        (Seeds("have used one ticket"), of_the_suite(hand_overs.test_a_ticket_is_used_once, "memory", Lock)),
        (rewritten(Adoption, "may_take", "self.ticket.hold in record.holds and ", ""),),
    ),
    Mutant(
        "loser not told",
        "A refused put answers with nothing instead of with the entry that is there.",
        (CONTRACT, law("test_acquire_is_right", kind="request that arrives twice")),
        make=bad_stores.RefusesSilently,
    ),
)
"""First the well-known bugs of distributed locks, then what the protections of this protocol keep out."""
