"""Bugs of the past stay fixed; each docstring says what is right."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from caslock import Hold, Lock, MultiLock, NotAcquired, NotHeld, OutcomeUnknown
from caslock.local.lock_state import LockState
from caslock.local.with_blocks import WithBlocks
from caslock.protocol.attempt import Terms
from caslock.store import Entry
from caslock.stores.memory import MemoryStore
from caslock.testing.faults import FaultyStore, lose_reply, lose_request
from tests.support.locations import held, present


def test_force_release_is_not_told_to_a_hold_that_leaves_by_itself() -> None:
    """One whose release has begun has lost nothing if that was applied: only its answer shows that."""
    store, losses = MemoryStore(), list[Hold]()
    hold = held(Lock(store, "key", on_lost=losses.append))
    hold._attempt.begin_release()
    assert Lock(store, "key").force_release() is not None
    assert not hold._attempt.lease.lost
    assert not losses


@pytest.mark.parametrize("again", [False, True])
def test_a_loss_before_the_acquire_returns_is_told(*, again: bool) -> None:
    """`force_release` may hit an acquire of its own process that has no answer yet; one that tries `again` holds."""
    store, lost = FaultyStore(MemoryStore()), threading.Event()
    store.after("put_if_version", 1, lambda: Lock(store, "k").force_release())
    if again:
        store.on("put_if_version", 1, lose_reply)
    hold = present(Lock(store, "k", ttl=3, on_lost=lambda _hold: lost.set()).acquire())
    if again:
        hold.extend()
        hold.release()
    else:
        assert lost.wait(60)


class Choosy:
    """Removes nothing under some keys, while it is so; it knows no batches."""

    def __init__(self, *keys: str) -> None:
        self.memory = MemoryStore()
        self.traits = self.memory.traits
        self.get = self.memory.get
        self.put_if_version = self.memory.put_if_version
        self.keys = keys

    def invalidate(self, key: str, version: int) -> Entry | None:
        if key in self.keys:
            message = "bad input"
            raise ValueError(message)
        return self.memory.invalidate(key, version)


@pytest.mark.parametrize("keys", ["a", "abc"])
def test_a_release_that_is_refused_is_no_interrupt(keys: str) -> None:
    """The other keys are free, and it can be called again."""
    store = Choosy("a")
    hold = present((MultiLock(store, keys=list(keys)) if len(keys) > 1 else Lock(store, keys)).acquire())
    with pytest.raises(ValueError, match="bad input") as caught:
        hold.release()
    assert caught.value.__notes__[0].startswith("Lock 'a' was not released: call release() again")
    assert [Lock(store, key).locked() for key in keys] == [key == "a" for key in keys]
    store.keys = ()
    hold.release()
    assert not Lock(store, "a").locked()


def test_a_refusal_in_a_roll_back_leaves_no_other_key_behind() -> None:
    """The error says which key may be left, and why."""
    store = Choosy("b")
    busy = held(Lock(store, "c"))
    with pytest.raises(OutcomeUnknown, match="may not have been released: bad input"):
        MultiLock(store, ["a", "b", "c"]).acquire(timeout=0)
    assert [Lock(store, key).locked() for key in "abc"] == [False, True, True]
    busy.release()


def test_an_inner_block_does_not_release_the_outer_hold() -> None:
    """A hold released by hand in an inner block is not taken from the outer block at the inner exit."""
    store = MemoryStore()
    lock = Lock(store, "key")

    def inner() -> None:
        with lock as hold:
            hold.release()

    with lock as outer:
        with pytest.raises(NotHeld):
            inner()
        outer.ensure_held()
        assert Lock(store, "key").acquire(timeout=0) is None
    assert not lock.locked()
    with pytest.raises(NotHeld):  # as an `RLock` does
        inner()
    assert not lock.locked()


def test_a_try_that_could_not_look_again_raises_instead_of_returning_none() -> None:
    """None means that nothing is held: if a lost put may still be applied and the store stops answering, it raises."""
    memory, key = MemoryStore(), "key"
    theirs = present(Lock(memory, key).acquire())
    store = FaultyStore(memory)
    store.on("put_if_version", 1, lose_request)
    store.on("get", 2, lose_request)
    with pytest.raises(OutcomeUnknown, match="while this process runs") as caught:
        Lock(store, key, retry=(0, 0)).acquire(timeout=0)
    assert isinstance(caught.value.__cause__, NotAcquired)
    theirs.release()


class Interrupting(WithBlocks[Any]):
    interrupts = False

    def pop(self, *block: object) -> object:
        left: object = super().pop(*block)
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return left


@pytest.mark.parametrize("kind", [Lock, MultiLock])
def test_an_interrupt_at_the_end_of_a_block_leaves_the_outer_one_alone(kind: type[Lock | MultiLock]) -> None:
    """An interrupt that strikes when a block has been left releases nothing more: the block around it goes on."""
    store = MemoryStore()
    lock = Lock(store, "key") if kind is Lock else MultiLock(store, ["key", "other"])
    lock._blocks = blocks = Interrupting()

    with lock as outer:
        with pytest.raises(KeyboardInterrupt), lock:
            blocks.interrupts = True
        outer.ensure_held()
    assert store.get("key") is None


def test_threads_of_one_lock_never_share_a_hold_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that takes over while another makes its attempt has a hold id of its own."""
    state = Lock(MemoryStore(), "key")._state.begun()
    others: list[str] = []
    terms = state._terms

    def while_another_acquires(_: LockState) -> Terms:
        monkeypatch.undo()
        others.append(state._attempt().hold_id)
        return terms

    monkeypatch.setattr(LockState, "_terms", property(while_another_acquires))
    assert state._attempt().hold_id not in others
    assert others
