"""The law of this file: every mutant has a sentence that says what is wrong, and all layers that have a view of it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pymemcache.client.base import Client

from caslock import Lock, MultiLock, claim, core, multi, request
from caslock.claim import Claim
from caslock.hold import Holding
from caslock.lockstate import LockState
from caslock.multi import Holds
from caslock.stores import memcached_wire
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memory import MemoryStore
from caslock.stores.redis_links import Link, Links
from caslock.task_world import TaskWorld
from caslock.testing.faults import FaultyStore, lose_request
from caslock.thread_world import ThreadWorld
from caslock.turnstile import Turnstile
from tests import test_contract_bites as bad_stores
from tests import test_faults_bite as faulty_cores
from tests import test_fork_and_signals as forks
from tests import test_multilock as multilocks
from tests import test_queue as queues
from tests import test_simulate_bites as simulated_cores
from tests.mutants import seeded
from tests.mutants.layers import Contract, Directed, Law, Mutant, Search, Seeds
from tests.places import fresh, opened, standing
from tests.stores import test_memcached as memcacheds

if TYPE_CHECKING:
    import pytest

    from tests.conftest import NewServer
    from tests.servers import Server


def an_entry_lives_its_ttl(request: pytest.FixtureRequest) -> None:
    """Watch entries of a real memcached, begun at all phases of its clock."""
    with opened("memcached", request) as place:
        store = place.store()
        assert isinstance(store, MemcachedStore)
        memcacheds.test_an_entry_lives_its_ttl(store, fresh())


def a_restart(request: pytest.FixtureRequest) -> None:
    """Restart a real memcached, whose cas ids begin again."""
    new: NewServer = request.getfixturevalue("new_memcached")

    def client(server: Server) -> Client:
        return Client((server.host, server.port), timeout=5, default_noreply=False)

    memcacheds.test_a_restart_never_repeats_a_version(new, client, MemcachedStore.from_url)


def a_child_leaves(request: pytest.FixtureRequest) -> None:
    """Fork inside a body that the child leaves first."""
    with opened("sqlite", request) as place:
        forks.test_a_child_that_leaves_the_body_frees_nothing(place, "the end")


def an_interrupt(kind: str, request: pytest.FixtureRequest) -> None:
    """Interrupt a request at each moment, and ask others of which the answers are known."""
    with opened(kind, request) as place:
        forks.test_a_verb_interrupted_at_any_moment_leaves_no_stale_reply(place, "get")


def a_reply_is_slow(request: pytest.FixtureRequest) -> None:
    """Answer a put when a quarter of its lease is over."""
    del request
    store = FaultyStore(MemoryStore())
    store.after("put_if_version", 1, lambda: time.sleep(0.5))
    hold = Lock(store, fresh(), ttl=2.0, auto_renew=False).acquire(timeout=0)
    assert hold is not None
    assert hold.remaining() < 1.5, "a lease is counted from its reply"
    hold.release()


def a_batch_is_lost(request: pytest.FixtureRequest) -> None:
    """Lose the one request that releases several keys, whose acquire was clean."""
    del request
    store, keys = FaultyStore(MemoryStore()), [fresh(), fresh()]
    holds = MultiLock(store, keys, auto_renew=False).acquire(timeout=0)
    assert holds is not None
    store.on("invalidate_many", 1, lose_request)
    holds.release()
    assert store.calls["invalidate_many"] == 1
    assert not any(standing(store, key) for key in keys), "a release that was lost is told as done"


def nobody_is_left(request: pytest.FixtureRequest) -> None:
    """Cancel the heir while the releaser waits for a renewal."""
    del request
    queues.test_nothing_is_handed_over_to_one_that_has_gone_before()


def any_order(request: pytest.FixtureRequest) -> None:
    """Give the keys of a MultiLock in any order."""
    with opened("memory", request) as place:
        multilocks.test_any_order_and_duplicates_are_one_lock(place)


def law(scenario: str, **arguments: object) -> Law:
    """Name a scenario and its case."""
    return Law(scenario, tuple(arguments.items()))


CONTRACT: Final = Contract()
SEEDS: Final = Seeds()

MUTANTS: Final = (
    Mutant(
        "unconditional invalidate",
        "A removal takes whatever stands, not the version that it names.",
        (CONTRACT, law("test_release_is_right", kind="late request", clean=True)),
        make=bad_stores.DeletesUnseen,
    ),
    Mutant(
        "get-then-delete",
        "A release reads who stands and removes that, without a look at whose it is.",
        (law("test_a_stale_holder_can_do_nothing", loss="another has it"), Seeds("has removed")),
        ((core, "_withdraw", faulty_cores.get_then_delete), (core, "_leave", faulty_cores.leave_the_long_way)),
    ),
    Mutant(
        "get-then-delete in a store",
        "A removal compares and deletes in two steps.",
        (CONTRACT,),
        make=seeded.LooksBeforeItRemoves,
    ),
    Mutant(
        "a miss taken as a win",
        "After a write that got no answer, nothing there is read as ours.",
        (law("test_a_miss_after_a_refusal_is_not_a_win", answer="lost", then="it stays free"), SEEDS),
        ((core, "write_surely", faulty_cores.miss_after_no_answer_is_ours),),
        control=faulty_cores.LONG_WAY,
    ),
    Mutant(
        "hold id shared over attempts",
        "All acquires of a Lock object have one hold id, so an echo of an earlier one is taken for the new one.",
        (Seeds("stands"),),
        ((LockState, "_claim", seeded.share_the_id),),
    ),
    Mutant(
        "owner name as identity",
        "A record with our owner's name is taken for the proof that this very attempt holds.",
        (SEEDS,),
        ((Claim, "stands_in", simulated_cores.stand_in_any),),
    ),
    Mutant(
        "deadline from the reply",
        "A lease is counted from when the answer came, not from before the request.",
        (Seeds("believes"), Directed("a reply is slow", a_reply_is_slow)),
        ((Claim, "stand", seeded.count_from_the_reply),),
        control=faulty_cores.LONG_WAY,
    ),
    Mutant(
        "extend that shortens late",
        "A shorter lease is believed once it is answered, not from when it is sent.",
        (law("test_a_shorter_lease_is_believed_when_it_is_sent"), Search("two processes, extending", 2, "believes")),
        ((core, "renew", faulty_cores.believe_the_old_lease),),
    ),
    Mutant(
        "extend that re-creates",
        "A renewal that finds nothing puts the record anew.",
        (law("test_a_stale_holder_can_do_nothing", loss="it vanished"), SEEDS),
        ((core, "renew", seeded.renew_or_create),),
    ),
    Mutant(
        "release without version",
        "memcached is sent `md` without the cas id.",
        (Contract("memcached"),),
        ((MemcachedStore, "invalidate", seeded.remove_any_version),),
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
        ((MemcachedStore, "_connect", seeded.origin_of_zero),),
    ),
    Mutant(
        "ttl missing on renewal",
        "What is written over an entry never ends.",
        (CONTRACT,),
        make=seeded.RenewsForEver,
    ),
    Mutant(
        "ttl missing on renewal in the core",
        "A renewal is written without a ttl.",
        (law("test_extend_is_right", kind="lost reply"), Seeds("without a ttl")),
        ((Claim, "bid", seeded.renew_for_ever),),
    ),
    Mutant(
        "retry that counts twice",
        "A retry that finds its own record re-enters it, so one release is not enough.",
        (law("test_acquire_is_right", kind="lost reply"), SEEDS),
        ((core, "write_surely", seeded.enter_again), (Claim, "others", faulty_cores.every_hold_lives)),
        control=faulty_cores.LONG_WAY,
    ),
    Mutant(
        "retry beyond its bound",
        "What got no answer is sent once more than asked.",
        (law("test_reads_and_writes_are_repeated_a_bounded_number_of_times"),),
        ((request, "_retry", faulty_cores.once_more),),
    ),
    Mutant(
        "timeout taken as 'not acquired'",
        "No answer to an acquire is told as held by somebody else.",
        (law("test_three_outcomes_are_never_mixed"), SEEDS),
        ((core, "write_surely", faulty_cores.no_answer_is_busy),),
        control=faulty_cores.LONG_WAY,
    ),
    Mutant(
        "timeout taken as 'released'",
        "No answer to a release is told as released.",
        (law("test_release_is_right", kind="lost request", clean=True), Seeds("has released")),
        ((core, "settle", seeded.silence_is_release),),
    ),
    Mutant(
        "hold forgotten before the answer",
        "A release that got no answer can't be called again.",
        (law("test_release_is_right", kind="lost request", clean=True), SEEDS),
        ((core, "release", seeded.forget_at_release),),
    ),
    Mutant(
        "fork keeps ownership",
        "A forked child believes in the holds of its parent, and releases them.",
        (Directed("test_a_child_that_leaves_the_body_frees_nothing", a_child_leaves),),
        (
            (Holding, "inherited", property(seeded.nothing_is_inherited)),
            (LockState, "_after_fork", seeded.never_forked),
        ),
    ),
    Mutant(
        "connection kept after BaseException",
        "A memcached connection whose request was interrupted serves the next one.",
        (Directed("test_a_verb_interrupted_at_any_moment_leaves_no_stale_reply", partial(an_interrupt, "memcached")),),
        ((MemcachedStore, "_ask", seeded.ask_and_keep),),
    ),
    Mutant(
        "connection kept after BaseException by Redis",
        "The same with a Redis connection.",
        (Directed("test_a_verb_interrupted_at_any_moment_leaves_no_stale_reply", partial(an_interrupt, "redis")),),
        ((Links, "_take", seeded.take_link), (Link, "close", seeded.put_link_back)),
    ),
    Mutant(
        "hand-over without a new fence",
        "A key that is handed over in a process keeps the fence of the last tenure.",
        (law("test_one_process_serves_all_its_waiters"), Seeds("fence")),
        ((core, "_hand_over", faulty_cores.hand_over_the_fence),),
    ),
    Mutant(
        "MultiLock unsorted",
        "Several keys are taken in the order in which they are given.",
        (
            law("test_several_keys_are_all_or_nothing"),
            Directed("test_any_order_and_duplicates_are_one_lock", any_order),
        ),
        ((multi, "sorted", list),),
    ),
    Mutant(
        "MultiLock that leaks on the k-th failure",
        "When a later one of several keys can't be had, the first is not given back.",
        (law("test_several_keys_are_all_or_nothing"), Seeds("told to have failed")),
        ((multi, "_roll_back", seeded.roll_back_but_one),),
    ),
    Mutant(
        "MultiLock that stops at the first failed release",
        "The release of several keys ends where one fails.",
        (law("test_several_keys_are_released_though_one_fails"), SEEDS),
        ((Holds, "released", faulty_cores.until_one_fails),),
    ),
    Mutant(
        "random fence",
        "A tenure's fence is drawn by chance.",
        (law("test_fences_only_grow"), Seeds("fence")),
        ((Claim, "bid", seeded.fence_by_chance),),
    ),
    Mutant(
        "new fence at each renewal",
        "Renewals and re-entries leave the fence out, so it grows within a tenure.",
        (law("test_an_owner_enters_from_anywhere", order=(0, 1, 2)), Seeds("fence")),
        ((Claim, "bid", faulty_cores.new_fence_at_each_write),),
    ),
    Mutant(
        "memcached ttl without margin",
        "The exptime is the ttl, rounded up, though the server's clock lags and leaps.",
        (Directed("test_an_entry_lives_its_ttl", an_entry_lives_its_ttl),),
        ((memcached_wire, "math", seeded.TTL_AS_ASKED),),
    ),
    Mutant(
        "free record treated as held",
        "Who finds a record without holds waits for it to leave.",
        (law("test_break_is_right", kind="lost reply"), Seeds("although all is well")),
        ((Claim, "may_take", seeded.free_is_held),),
    ),
    Mutant(
        "held record treated as free",
        "Whoever stands there is overwritten.",
        (law("test_busy_is_told_as_busy", kind="lost request"), Seeds("believes")),
        ((Claim, "may_take", faulty_cores.take_anybodys),),
    ),
    Mutant(
        "foreign value treated as free",
        "What caslock did not write is overwritten.",
        (law("test_what_caslock_did_not_write_is_never_overwritten"),),
        ((request, "decode", faulty_cores.unreadable_is_free),),
    ),
    Mutant(
        "thread name as identity",
        "A thread or task is known by its name, which is used again.",
        (law("test_a_name_that_is_used_again_is_nobody"),),
        ((ThreadWorld, "me", faulty_cores.thread_name), (TaskWorld, "me", faulty_cores.task_name)),
    ),
    Mutant(
        "no drift margin",
        "A lease is believed for longer than the store keeps it.",
        (law("test_extend_is_right", kind="lost request"), Seeds("believes")),
        ((claim, "margin", simulated_cores.no_margin),),
    ),
    Mutant(
        "failed acquire not made definite",
        "An acquire that ends in an error leaves what may stand, or land yet.",
        (law("test_giving_up_is_for_certain"), Seeds("told to have failed")),
        ((core, "give_up", simulated_cores.give_up_without_looking),),
    ),
    Mutant(
        "removal while a lost put may land",
        "A hold whose acquire left a request unanswered is released into nothing.",
        (law("test_acquire_is_right", kind="late request"), SEEDS),
        ((Claim, "farewell", simulated_cores.leave_nothing),),
        control=faulty_cores.LONG_WAY,
    ),
    Mutant(
        "late request forgotten",
        "What got no answer is taken for lost.",
        (law("test_acquire_is_right", kind="late request"), SEEDS),
        ((Claim, "may_land", simulated_cores.forget_what_was_sent),),
        control=faulty_cores.LONG_WAY,
    ),
    Mutant(
        "re-entry that drops the other holds",
        "A re-entry elsewhere takes its owner's other holds for its own.",
        (law("test_an_owner_enters_from_anywhere", order=(0, 1, 2)), Seeds("has removed")),
        ((Claim, "others", simulated_cores.drop_others),),
    ),
    Mutant(
        "renewal that revives",
        "A renewal whose answer comes after the deadline brings the belief back.",
        (Seeds("believes"),),
        ((core, "renew", simulated_cores.check_before_only),),
    ),
    Mutant(
        "loss kept to oneself",
        "Who notices a loss tells nobody.",
        (law("test_loss_is_told_to_the_body"), Seeds("was not told")),
        ((core, "tell", seeded.tell_nobody),),
    ),
    Mutant(
        "heir promised and forgotten",
        "A waiter of the process is promised the key, and nobody tells it how that ended.",
        (Seeds("promised"),),
        ((Turnstile, "name_heir", simulated_cores.begin_for_no_heir),),
    ),
    Mutant(
        "heir told too early",
        "A hand-over that got no answer is told to the heir as done.",
        (SEEDS,),
        ((core, "_hand_over", simulated_cores.hand_over_at_no_answer),),
    ),
    Mutant(
        "releaser told too early",
        "A hand-over that was refused is told to the releaser as done.",
        (SEEDS,),
        ((core, "_hand_over", simulated_cores.hand_over_and_believe),),
    ),
    Mutant(
        "key handed to a waiter that has gone",
        "The releaser hands over without a look whether its heir still waits.",
        (
            Search("two tasks, extending aside", word="told to have failed"),
            Directed("test_nothing_is_handed_over_to_one_that_has_gone_before", nobody_is_left),
        ),
        ((core, "_hand_over", simulated_cores.hand_over_unseen),),
    ),
    Mutant(
        "no second look as the key is handed over",
        "The releaser looks for its heir before it takes note of what it sends, and never after.",
        (Search("two threads, racing", word="told to have failed"),),
        ((Claim, "first", simulated_cores.write_and_not_look),),
    ),
    Mutant(
        "next one let in before the last has left",
        "Who comes after an heir that has gone is let in while the releaser is still there.",
        (Search("three tasks of two Locks", word="which it had not"),),
        ((Turnstile, "name_heir", simulated_cores.let_follow_at_once),),
    ),
    Mutant(
        "heir named beside others that leave",
        "The hold of another Lock object of the same owner that is being released is not waited for.",
        (Search("three tasks of one owner", 0, "which it had not"),),
        ((Turnstile, "name_heir", simulated_cores.name_heir_beside_others),),
    ),
    Mutant(
        "hold id read after another thread has drawn one",
        "Two threads of one Lock object acquire at the same moment, and get one hold id.",
        (Search("two threads of one Lock, racing"),),
        ((LockState, "_claim", simulated_cores.read_the_id_again),),
    ),
    Mutant(
        "extension by a loop that is gone",
        "A hold whose event loop was closed in an extension is renewed by the next loop for ever.",
        (Search("two tasks, extending aside", word="does not end"),),
        ((LockState, "renew", simulated_cores.watch_the_dead),),
    ),
    Mutant(
        "break of who comes after",
        "A break goes on until nobody stands.",
        (Search("two processes, breaking", 0, "who came after"),),
        ((core, "break_", simulated_cores.break_whoever_comes),),
    ),
    Mutant(
        "inner release that frees the key",
        "One release is enough for all levels of re-entry.",
        (Search("two of one owner, again", 0, "believes"),),
        ((LockState, "release", simulated_cores.leave_for_all),),
    ),
    Mutant(
        "turnstile never left",
        "A claim that is over stays in the queue of its process.",
        (SEEDS,),
        ((Turnstile, "leave", simulated_cores.never_leave),),
    ),
    Mutant(
        "batch of puts without an answer forgotten",
        "The puts of a MultiLock that travelled together and got no answer are taken for lost.",
        (Search("two processes, two keys", word="has released"),),
        ((core, "bid_together", simulated_cores.bid_at_no_answer),),
    ),
    Mutant(
        "batch of releases without an answer taken as released",
        "The releases of a MultiLock that travelled together and got no answer are taken for done.",
        (
            law("test_one_request_for_several_keys_without_an_answer"),
            SEEDS,
            Directed("a batch is lost", a_batch_is_lost),
        ),
        ((core, "leave_together", seeded.leave_at_no_answer),),
    ),
    Mutant(
        "interrupted clean-up forgotten",
        "An acquire whose clean-up was interrupted is forgotten, with what stands of it.",
        (Seeds("stands"),),
        ((LockState, "undo", simulated_cores.forget_at_undo),),
    ),
    Mutant(
        "get-then-put",
        "A put compares and writes in two steps.",
        (CONTRACT,),
        make=bad_stores.LooksFirst,
    ),
    Mutant(
        "loser not told",
        "A refused put answers with nothing instead of with who stands.",
        (CONTRACT, law("test_acquire_is_right", kind="request that arrives twice")),
        make=bad_stores.RefusesSilently,
    ),
    Mutant(
        "lease that ends early",
        "The store rounds ttls down.",
        (CONTRACT,),
        make=bad_stores.EndsEarly,
    ),
    Mutant(
        "renewal that adds up",
        "A renewal's lease is added to what is left of the last.",
        (CONTRACT,),
        make=bad_stores.AddsUp,
    ),
    Mutant(
        "removal that wakes nobody",
        "Who waits at the store is not told that the key is free.",
        (CONTRACT,),
        make=bad_stores.WakesNobody,
    ),
    Mutant(
        "batch written in part",
        "Of several puts those are written that can be.",
        (CONTRACT,),
        make=bad_stores.PutsOneByOne,
    ),
)
"""First each bug by its name in the issue, with its kin; then what protections of ours keep out."""
