"""At most one owner holds a key, and a holder that has lost it can do nothing to it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Final

import pytest
import tenacity

from caslock.errors import LockLost, NotHeld, StoreError, StoreUnavailable
from caslock.protocol.record import Record, encode
from caslock.store import ABSENT, AsyncStore, Store
from caslock.testing.drive import done
from caslock.testing.faults import lose_reply, read_again
from tests.proof.laws.scene import TTL, AnyHold, AnyLock, Scene, attempt, each, inside, scenario, take
from tests.support.locations import make_due, present

SHORT: Final = 0.3
"""Seconds of a lease that a test waits for."""

FOREIGN: Final = (
    b"",
    b"hello",
    b"1",
    b"null",
    b"[]",
    b"{}",
    b'"free"',
    b'{"caslock":1}',
    b'{"caslock":1,"holds":[]}',
    b'{"caslock":2,"owner":"a","holds":[],"ttl":1}',
    b'{"owner":"a","holds":[]}',
    b"\xff\xfe\x00",
    b"[" * 4096,
    encode(Record("a", (), 1.0)).replace(b'"caslock":1', b'"caslock":99'),
    encode(Record("a", (), 1.0)) + b"x",
    encode(Record("a", (), 1.0))[:-1],
)
"""Values that caslock has not written, though some come close to a record that says "free"."""


class Holders:
    """The laws of holding, losing and force-releasing a lock, the hardest first."""

    @pytest.mark.parametrize("loss", ["it vanished", "force-released", "another has it"])
    @scenario
    async def test_a_stale_holder_can_do_nothing(self, scene: Scene, loss: str) -> None:
        """A client that has lost a lock can neither renew nor release it, learns so, and touches nobody else's hold."""

        async def stale(acts: tuple[str, ...], key: str) -> None:
            lock, rival = scene.lock(key=key, ttl=TTL), scene.rival(key)
            hold = await take(lock)
            if loss == "force-released":
                await done(rival.force_release())
            else:
                await scene.vanish(key)
            theirs = await take(rival) if loss == "another has it" else None

            for act in acts:
                with pytest.raises(LockLost, match=key):
                    await done(hold.extend() if act == "extend" else hold.release())
                assert hold.lost
                assert hold.remaining() == 0

            with pytest.raises(NotHeld):
                await done(hold.release()) if acts[-1] == "release" else await done(lock.release())
            holder = await scene.holder(key)
            assert (holder and holder.owner) == (theirs and rival.owner)
            if theirs:
                assert await attempt(lock) is None
                await done(theirs.extend())
                await done(theirs.release())
            await done((await take(lock)).release())
            assert await scene.holder(key) is None

        stories = [("extend", "release"), ("extend", "extend", "release")]
        # A release that finds nothing, while its lease lives, can't know whether it came second or first.
        await each(scene, stories if loss == "it vanished" else [("release",), *stories], stale)

    @scenario
    async def test_an_expired_lock_is_won_by_one_and_lost_to_its_holder(self, scene: Scene) -> None:
        """A lease that has run out is lost, as each call of its holder shows; of those that race for it, one wins."""

        async def ensure(_: AnyLock, hold: AnyHold) -> None:
            hold.ensure_held()

        tries: dict[str, Callable[[AnyLock, AnyHold], Coroutine[object, object, object]]] = {
            "extend": lambda _, hold: done(hold.extend()),
            "release": lambda _, hold: done(hold.release()),
            "ensure_held": ensure,
            "enter": lambda lock, _: attempt(lock),
        }
        locks = {
            f"{act}:{raced}": scene.lock(key=f"{scene.key}:{act}:{raced}", ttl=SHORT)
            for raced in range(3)
            for act in tries
        }
        holds = {name: await take(lock) for name, lock in locks.items()}
        wins: dict[str, list[AnyHold]] = {name: [] for name in locks}

        async def race(store: Store | AsyncStore, name: str) -> None:
            lock = scene.lock(store, locks[name].key)
            while not wins[name]:
                hold = await attempt(lock)
                if hold is not None:
                    wins[name].append(hold)
                await scene.play.sleep(0.005)

        racers = [
            race(store, name) for name in locks if not name.endswith("0") for store in (scene.store, scene.another)
        ]
        await scene.play.together(racers, len(racers))

        for name, hold in holds.items():
            raced = not name.endswith("0")
            if not raced:
                await scene.until_over(hold, SHORT)
            assert len(wins[name]) == raced
            assert hold.lost
            assert hold.remaining() == 0
            with pytest.raises(LockLost):
                await tries[name[:-2]](locks[name], hold)
            if hold._is_open:
                with pytest.raises(LockLost):
                    await done(hold.release())
            holder = await scene.holder(hold.key)
            if raced or scene.traits.expires:  # else its own entry may still be there
                assert (holder.holds if holder else ()) == tuple(winner._attempt.hold_id for winner in wins[name])
            for winner in wins[name]:
                winner.ensure_held()
                assert winner._attempt.lease.fence > hold._attempt.lease.fence or not scene.traits.fences
                await done(winner.release())

    @scenario
    async def test_one_at_a_time(self, scene: Scene) -> None:
        """Clients that wait for the same key hold it one after the other, and each with a larger fence."""
        here: list[int] = []
        fences: list[int] = []

        async def client(number: int) -> None:
            lock = scene.lock((scene.store, scene.another)[number % 2], poll=tenacity.wait_random(0, 0.01), ttl=TTL)
            for _ in range(4):
                hold = await take(lock, timeout=TTL)
                here.append(number)
                fences.append(hold._attempt.lease.fence)
                await scene.play.sleep(0.001)
                assert here == [number], f"{here} hold the same key"
                here.clear()
                await done(hold.release())

        await scene.play.together([client(number) for number in range(6)], 6)

        assert len(fences) == 24
        assert fences == sorted(set(fences)) or not scene.traits.fences

    @pytest.mark.parametrize("then", ["it stays free", "a third takes it"])
    @pytest.mark.parametrize("answer", ["lost", "read again"])
    @scenario
    async def test_a_miss_after_a_refusal_is_not_a_win(self, scene: Scene, answer: str, then: str) -> None:
        """A client that is refused, and then finds nothing because the holder has left, has not won: it must write."""
        faulty = scene.faulty()
        lock, rival, third = scene.lock(faulty), scene.rival(), scene.rival()
        theirs = await take(rival)
        others: list[AnyHold] = []

        async def leave() -> None:
            await done(theirs.release())

        async def come() -> None:
            others.append(await take(third))

        faulty.on("put_if_version", 1, lose_reply if answer == "lost" else read_again)
        faulty.after("put_if_version", 1, scene.play.hook(leave))
        if then == "a third takes it":
            faulty.before("put_if_version", 2, scene.play.hook(come))
        hold = await attempt(lock)

        holder = await scene.holder()
        assert holder is not None, "it believes in a lock that it does not have"
        if others:
            assert hold is None
            assert holder.owner == third.owner
            others[0].ensure_held()
            await done(others[0].release())
        else:
            assert hold is not None
            assert hold._attempt.hold_id in holder.holds
            await done(hold.release())
        assert await scene.holder() is None

    @scenario
    async def test_what_caslock_did_not_write_is_never_overwritten(self, scene: Scene) -> None:
        """A value that is no record of ours counts as held by somebody unknown, whatever is tried."""

        async def meet(value: bytes, key: str) -> None:
            observed = present(await done(scene.another.put_if_version(key, value, ABSENT, TTL)))
            lock = scene.lock(key=key, ttl=TTL)

            assert await attempt(lock) is None
            assert await attempt(lock, timeout=0.02) is None
            assert await done(lock.locked())
            holder = present(await done(lock.holder()))
            assert holder.foreign
            with pytest.raises(StoreError) as refusal:
                await done(lock.force_release())
            assert not isinstance(refusal.value, StoreUnavailable)

            assert await done(scene.store.get(key)) == observed

        await each(scene, FOREIGN, meet)

    @scenario
    async def test_fences_only_grow(self, scene: Scene) -> None:
        """Each tenure has a larger fence than all before, and keeps it; a store that can't promise that gives none."""
        fences: list[int] = []
        for number in range(12):
            lock = scene.lock((scene.store, scene.another)[number % 2], ttl=TTL)
            hold = await take(lock)
            if not scene.traits.fences:
                with pytest.raises(StoreError):
                    _ = hold.fence
                await done(hold.release())
                return
            fences.append(hold.fence)
            await done(hold.extend())
            assert hold.fence == fences[-1]
            if number % 3 == 2:
                await done(scene.rival().force_release())
                with pytest.raises(LockLost):
                    await done(hold.release())
            else:
                await done(hold.release())
        assert fences == sorted(set(fences))

    @scenario
    async def test_loss_is_reported_to_the_block(self, scene: Scene) -> None:
        """A lease is renewed in the background; when it is lost the hold, the callback and the block's end say so."""
        told: list[object] = []
        lock = scene.lock(ttl=TTL, auto_renew=True, on_lost=told.append)
        rival = scene.rival()

        async def wait_for_the_loss() -> None:
            async with inside(lock) as hold:
                began = await done(scene.another.get(scene.key))
                fence = hold._attempt.lease.fence

                async def renewed() -> bool:
                    return await done(scene.another.get(scene.key)) != began

                async def lost() -> bool:
                    return hold.lost

                make_due(hold._attempt)
                await scene.until(renewed, "a renewal")
                assert hold._attempt.lease.fence == fence
                hold.ensure_held()
                assert await done(rival.force_release()) is not None
                make_due(hold._attempt)
                await scene.until(lost, "the loss")

        with pytest.raises(LockLost):
            await scene.play.elsewhere(wait_for_the_loss(), "the body")

        async def was_told() -> bool:
            return bool(told)

        await scene.until(was_told, "the callback")  # it runs in a thread of its own
        assert len(told) == 1
