"""Whatever happens to the requests of a lock, its answers are right and it leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from caslock.errors import LockLost, NotHeld, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.testing.drive import done
from caslock.testing.faults import Fault, Verb, late, lose_reply, lose_request, raising
from tests.proof.laws.scene import TTL, AnyFaultyStore, AnyHold, AnyLock, Scene, attempt, each, scenario, take
from tests.proof.laws.trouble import KINDS, RETRY, Trouble, troubles
from tests.support.locations import present


class Trials:
    """Each call of a lock, with every kind of fault, for every request, at every moment."""

    @pytest.mark.parametrize("kind", KINDS)
    @scenario
    async def test_acquire_is_right(self, scene: Scene, kind: str) -> None:
        """Whatever happens to a request of an acquire: it never loses to itself, and leaves nothing behind."""

        async def acquire(trouble: Trouble, key: str) -> None:
            faulty = scene.faulty()
            lock = scene.lock(faulty, key, ttl=TTL, retry=RETRY)
            trouble.plan(faulty, writes_by="put_if_version")
            hold: AnyHold | None = None
            try:
                hold = await take(lock)
            except OutcomeUnknown:
                pytest.fail("the store could be asked what has become of it")
            except StoreUnavailable:
                assert trouble.exhausts, "a lock that nobody holds should be taken"
            await end_of_story(scene, trouble, faulty, lock, hold)

        await each(scene, troubles(kind, "put_if_version", "get"), acquire)

    @pytest.mark.parametrize("kind", KINDS)
    @scenario
    async def test_extend_is_right(self, scene: Scene, kind: str) -> None:
        """Whatever happens to a request of a renewal: a hold that is there is not reported as lost, nor left behind."""

        async def extend(trouble: Trouble, key: str) -> None:
            faulty = scene.faulty()
            lock = scene.lock(faulty, key, ttl=TTL, retry=RETRY)
            hold = await take(lock)
            fence = hold._attempt.lease.fence
            trouble.plan(faulty, writes_by="put_if_version")
            try:
                await done(hold.extend(2 * TTL))
            except StoreUnavailable:
                assert trouble.exhausts, "a hold that is there should be renewed"
                assert hold.remaining() <= TTL, "a lease is not believed before it is answered"
            else:
                assert TTL < hold.remaining() <= 2 * TTL
                assert present(await scene.holder(key)).ttl == 2 * TTL
            assert hold._attempt.lease.fence == fence
            await end_of_story(scene, trouble, faulty, lock, hold)

        await each(scene, troubles(kind, "put_if_version", "get"), extend)

    @pytest.mark.parametrize("clean", [True, False], ids=["after a clean acquire", "after a lost request"])
    @pytest.mark.parametrize("kind", KINDS)
    @scenario
    async def test_release_is_right(self, scene: Scene, kind: str, clean: bool) -> None:  # noqa: FBT001 - a parameter
        """Whatever happens to a request of a release: the key is free after it, and the next hold is not touched."""
        writes_by: Final = "invalidate" if clean else "put_if_version"

        async def release(trouble: Trouble, key: str) -> None:
            faulty = scene.faulty()
            lock = scene.lock(faulty, key, ttl=TTL, retry=RETRY)
            if not clean:
                faulty.on("put_if_version", 1, late(after=50))
            hold = await take(lock)
            trouble.plan(faulty, writes_by=writes_by)
            try:
                await done(hold.release())
            except StoreUnavailable:
                assert trouble.exhausts, "a release that got its answer at last should say so"
                await trouble.reach("done", faulty)
                await done(hold.release())
            await end_of_story(scene, trouble, faulty, lock, None)

        await each(scene, troubles(kind, writes_by, "get"), release)

    @pytest.mark.parametrize("kind", KINDS)
    @scenario
    async def test_busy_is_reported_as_busy(self, scene: Scene, kind: str) -> None:
        """Whatever happens to a request for a lock that another holds: it is not acquired, and the other keeps it."""

        async def contend(trouble: Trouble, key: str) -> None:
            faulty = scene.faulty()
            lock, rival = scene.lock(faulty, key, ttl=TTL, retry=RETRY), scene.rival(key, ttl=TTL)
            theirs = await take(rival)
            trouble.plan(faulty, writes_by="put_if_version")
            try:
                assert await attempt(lock) is None
            except StoreUnavailable:
                assert trouble.exhausts, "the holder could be read"
            await trouble.reach("done", faulty)
            await trouble.reach("left", faulty)
            theirs.ensure_held()
            await done(theirs.extend())
            await done(theirs.release())
            await trouble.reach("taken", faulty)
            await trouble.reach("end", faulty)
            await free_or_an_echo(scene, lock)

        await each(scene, troubles(kind, "put_if_version", "get"), contend)

    @pytest.mark.parametrize("kind", KINDS)
    @scenario
    async def test_reentry_elsewhere_is_right(self, scene: Scene, kind: str) -> None:
        """Whatever happens to a request of a re-entry by its owner: the key is free after the last release only."""

        async def enter(trouble: Trouble, key: str) -> None:
            faulty = scene.faulty()
            first, second = (
                scene.lock(store, key, ttl=TTL, owner=f"owner of {key}", retry=RETRY)
                for store in (scene.another, faulty)
            )
            outer = await take(first)
            trouble.plan(faulty, writes_by="put_if_version")
            inner: AnyHold | None = None
            try:
                inner = await take(second)
                assert inner._attempt.lease.fence == outer._attempt.lease.fence
            except StoreUnavailable:
                assert trouble.exhausts, "an owner should re-enter its own record"
            await trouble.reach("done", faulty)
            for hold in (outer, inner):
                if hold is not None:
                    assert await attempt(scene.rival(key)) is None, "an owner has not left with its first release"
                    hold.ensure_held()
                    await done(hold.extend())
                    await done(hold.release())
            await end_of_story(scene, trouble, faulty, second, None)

        await each(scene, troubles(kind, "put_if_version", "get"), enter)

    @pytest.mark.parametrize("kind", KINDS)
    @scenario
    async def test_force_release_is_right(self, scene: Scene, kind: str) -> None:
        """Whatever happens to a request of a `force_release`: its holder learns of it, the next one is untouched."""

        async def force_release(trouble: Trouble, key: str) -> None:
            faulty = scene.faulty()
            lock, rival = scene.lock(faulty, key, ttl=TTL, retry=RETRY), scene.rival(key, ttl=TTL)
            theirs = await take(rival)
            trouble.plan(faulty, writes_by="put_if_version")
            try:
                broken = await done(lock.force_release())
            except StoreUnavailable:
                assert trouble.exhausts, "a lock whose holder can be read can be broken"
                await trouble.reach("done", faulty)
                if await scene.holder(key) is not None:
                    theirs.ensure_held()
                    await done(theirs.release())
            else:
                assert broken is not None
                assert broken.owner == rival.owner
                assert await scene.holder(key) is None
                await trouble.reach("done", faulty)
                with pytest.raises(LockLost):
                    await done(theirs.extend())
            await end_of_story(scene, trouble, faulty, lock, None)

        await each(scene, troubles(kind, "put_if_version", "get"), force_release)

    @scenario
    async def test_a_waiter_knows_its_own_late_request(self, scene: Scene) -> None:
        """A request that got no answer may land while its sender still waits: then the sender holds."""
        faulty = scene.faulty(plain=True)
        lock = scene.lock(faulty, ttl=TTL)
        theirs = await take(scene.rival())

        async def leave() -> None:
            await done(theirs.release())
            assert await done(faulty.deliver()) == 1

        faulty.on("put_if_version", 1, late())
        faulty.before("put_if_version", 3, scene.play.hook(leave))
        hold = await take(lock, timeout=TTL)

        assert present(await scene.holder()).holds == (hold._attempt.hold_id,)
        hold.ensure_held()
        await done(hold.release())
        assert await scene.holder() is None

    @scenario
    async def test_a_late_request_does_not_revive_a_lost_hold(self, scene: Scene) -> None:
        """A hold whose record has gone stays lost when a late request of its own acquire writes its hold id again."""
        faulty = scene.faulty(plain=True)
        lock = scene.lock(faulty, ttl=TTL, retry=RETRY)
        faulty.on("put_if_version", 1, late())
        hold = await take(lock)
        await scene.vanish()
        await done((await take(scene.rival())).release())
        assert await done(faulty.deliver()) == 1
        record = present(await scene.holder())
        assert record.holds == (hold._attempt.hold_id,)

        with pytest.raises(LockLost):
            await done(hold.extend())
        with pytest.raises(LockLost):
            await done(hold.release())

        assert await scene.holder() is None

    @scenario
    async def test_a_shorter_lease_is_believed_when_it_is_sent(self, scene: Scene) -> None:
        """A shorter extension without an answer may have been applied: the longer lease is no longer relied on."""
        faulty = scene.faulty()
        hold = await take(scene.lock(faulty, ttl=TTL))
        faulty.on("put_if_version", 1, lose_reply)
        faulty.on("get", range(1, 10), lose_request)

        with pytest.raises(StoreUnavailable):
            await done(hold.extend(TTL / 2))

        assert hold.remaining() <= TTL / 2
        faulty.heal()
        await done(hold.extend(TTL))
        assert hold.remaining() > TTL / 2
        await done(hold.release())
        assert await scene.holder() is None

    @scenario
    async def test_giving_up_is_for_certain(self, scene: Scene) -> None:
        """An acquire that got no answer, but could read afterwards, leaves nothing, and nothing of it arrives later."""

        async def give_up(moment: str, key: str) -> None:
            faulty = scene.faulty()
            lock, rival = scene.lock(faulty, key, ttl=TTL, retry=RETRY), scene.rival(key)
            if moment == "nothing is late":
                faulty.on("put_if_version", 1, lose_reply)
                faulty.on("get", range(1, 4), lose_request)
            else:
                faulty.on("put_if_version", range(1, 4), late())
            with pytest.raises(StoreUnavailable) as failure:
                await attempt(lock)
            assert failure.type is StoreUnavailable
            assert await scene.holder(key) is None

            if moment == "at once":
                assert await done(faulty.deliver()) == 3
            hold = await take(rival)
            if moment == "another has it":
                assert await done(faulty.deliver()) == 3
            hold.ensure_held()
            await done(hold.release())
            if moment == "another had it":
                assert await done(faulty.deliver()) == 3
            assert await scene.holder(key) is None

        await each(scene, ["at once", "another has it", "another had it", "nothing is late"], give_up)

    @scenario
    async def test_reads_and_writes_are_repeated_a_bounded_number_of_times(self, scene: Scene) -> None:
        """Writes and reads are repeated as often as asked, each counted apart; and once more to settle the outcome."""

        async def count(retry: tuple[int, int], key: str) -> None:
            gets, puts = retry
            for verb, calls in (
                # Each write that got no answer is followed by one read; the clean-up begins with a read.
                ("put_if_version", {"put_if_version": 2 * (1 + puts), "get": 2 * (1 + puts) + 1}),
                # No answer to a read: no further write.
                ("any", {"put_if_version": 1, "get": 2 * (1 + gets)}),
            ):
                faulty = scene.faulty()
                planned: Verb = "any" if verb == "any" else "put_if_version"
                faulty.on(planned, range(1, 100), lose_request)
                with pytest.raises(OutcomeUnknown):
                    await attempt(scene.lock(faulty, f"{key}:{verb}", retry=retry))
                assert faulty.calls == Counter(calls), retry

        await each(scene, [(0, 0), (1, 1), (3, 0), (0, 3)], count)

    @pytest.mark.parametrize("applied", [0, 1, 2], ids=["before it arrives", "after it arrived", "and it is late"])
    @scenario
    async def test_an_interrupted_acquire_leaves_nothing(self, scene: Scene, applied: int) -> None:
        """A KeyboardInterrupt or a cancellation during any request of an acquire leaves the key free at once."""
        interrupted = Fault(applied % 2, scene.play.interruption, kept=applied == 2)

        async def interrupt(verb: Verb, key: str) -> None:
            faulty = scene.faulty()
            lock, rival = scene.lock(faulty, key, ttl=TTL), scene.rival(key)
            faulty.on("put_if_version", 1, lose_reply)
            faulty.on(verb, 1, interrupted)
            with pytest.raises(scene.play.interruption):
                await attempt(lock)
            await done(faulty.deliver())
            assert await scene.holder(key) is None
            await done((await take(rival)).release())
            await done((await take(lock)).release())
            assert await scene.holder(key) is None

        verbs: list[Verb] = ["put_if_version", "get"]
        await each(scene, verbs, interrupt)

    @pytest.mark.parametrize("applied", [False, True], ids=["before it arrives", "after it arrived"])
    @scenario
    async def test_an_interrupted_release_leaves_nothing(self, scene: Scene, applied: bool) -> None:  # noqa: FBT001 - a parameter
        """A KeyboardInterrupt or a cancellation during a release goes on only when the key is free."""
        faulty = scene.faulty()
        lock = scene.lock(faulty, ttl=TTL)
        hold = await take(lock)
        faulty.on("invalidate", 1, raising(scene.play.interruption, applied=applied))

        with pytest.raises(scene.play.interruption):
            await done(hold.release())

        assert await scene.holder() is None
        await done((await take(scene.rival())).release())
        with pytest.raises(NotHeld):
            await done(lock.release())
        await done((await take(lock)).release())

    @pytest.mark.parametrize("applied", [False, True], ids=["before it arrives", "after it arrived"])
    @scenario
    async def test_an_interrupted_renewal_loses_nothing(self, scene: Scene, applied: bool) -> None:  # noqa: FBT001 - a parameter
        """A KeyboardInterrupt or a cancellation during a renewal leaves a hold that can be renewed and released."""
        faulty = scene.faulty()
        hold = await take(scene.lock(faulty, ttl=TTL))
        faulty.on("put_if_version", 1, raising(scene.play.interruption, applied=applied))

        with pytest.raises(scene.play.interruption):
            await done(hold.extend())

        hold.ensure_held()
        await done(hold.extend())
        await done(hold.release())
        assert await scene.holder() is None

    @scenario
    async def test_three_outcomes_are_never_mixed(self, scene: Scene) -> None:
        """Held by another, no answer and a refusal of the store are three outcomes, whatever is there."""

        async def meet(held: bool, key: str) -> None:  # noqa: FBT001 - a case
            theirs = await take(scene.rival(key)) if held else None
            for outcome in ("refused", "no answer", "no connection", "an answer at last"):
                faulty = scene.faulty()
                lock = scene.lock(faulty, f"{key}", ttl=TTL, retry=(1, 1))
                if outcome == "refused":
                    faulty.on("put_if_version", 1, raising(lambda: StoreError("read-only"), applied=False))
                elif outcome == "no connection":
                    faulty.on(
                        "any", range(1, 100), raising(lambda: StoreUnavailable("refused", sent=False), applied=False)
                    )
                else:
                    faulty.on("any", range(1, 100) if outcome == "no answer" else 1, lose_request)
                hold: AnyHold | None = None
                error: Exception | None = None
                try:
                    hold = await attempt(lock)
                except StoreError as caught:
                    error = caught
                if outcome == "an answer at last":
                    assert error is None
                    assert (hold is None) == held
                else:
                    expected = {"refused": StoreError, "no answer": OutcomeUnknown, "no connection": StoreUnavailable}
                    assert type(error) is expected[outcome], outcome
                if hold is not None:
                    await done(hold.release())
            if theirs:
                theirs.ensure_held()
                await done(theirs.extend())
                await done(theirs.release())
            assert await scene.holder(key) is None

        await each(scene, [True, False], meet)


async def end_of_story(
    scene: Scene, trouble: Trouble, faulty: AnyFaultyStore, lock: AnyLock, hold: AnyHold | None
) -> None:
    """After a call that met a fault: the holder holds the key alone and can release it; the next is not touched."""
    rival = scene.rival(lock.key)
    if hold is not None:
        record = await scene.holder(lock.key)
        assert record is not None, "it believes in a lock that it does not have"
        assert hold._attempt.hold_id in record.holds
        assert await attempt(rival) is None
        await trouble.reach("done", faulty)
        hold.ensure_held()
        assert await attempt(rival) is None, "what came late has freed a lock that is held"
        await done(hold.release())
    await trouble.reach("left", faulty)
    if trouble.echoes:
        await free_or_an_echo(scene, lock)
    later = await take(rival)
    if hold is not None and scene.traits.fences:
        assert later._attempt.lease.fence > hold._attempt.lease.fence
    await trouble.reach("taken", faulty)
    record = present(await scene.holder(lock.key))
    assert record.owner == rival.owner, "what came late has touched another's hold"
    later.ensure_held()
    await done(later.extend())
    await done(later.release())
    await trouble.reach("end", faulty)
    if trouble.echoes:
        await free_or_an_echo(scene, lock)
    assert await scene.holder(lock.key) is None, "what came late has left an orphan"


async def free_or_an_echo(scene: Scene, lock: AnyLock) -> None:
    """Check that nothing is there but a late request of ours, for a lease at most, and that it never blocks us."""
    record = await scene.holder(lock.key)
    if record is not None:
        assert record.owner == lock.owner
        assert record.ttl <= TTL
        await done((await take(lock)).release())
    assert await scene.holder(lock.key) is None
