"""The law of this file: several keys are taken in one order, all or nothing, and let go whatever happens to one."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from caslock.errors import LockLost, StoreUnavailable
from caslock.testing.drive import done
from caslock.testing.faults import lose_request
from caslock.testing.scene import TTL, Scene, attempt_all, each, scenario, take


class SeveralKeys:
    """The laws of a `MultiLock`."""

    @scenario
    async def test_several_keys_are_all_or_nothing(self, scene: Scene) -> None:
        """When one of several keys can't be had, those before it are released in reverse, and none is held."""

        async def fail(number: int, key: str) -> None:
            keys = [f"{key}:{letter}" for letter in "abcd"]
            busy = number < len(keys)
            theirs = await take(scene.rival(keys[number])) if busy else None
            faulty = scene.faulty()
            both_ways = scene.play.multi(faulty, [*reversed(keys), *keys], ttl=TTL, retry=(0, 0), auto_renew=False)
            if busy:
                assert await attempt_all(both_ways) is None
                failed = number
            else:
                failed = number - len(keys)
                faulty.on("put_if_version", failed + 1, lose_request)
                with pytest.raises(StoreUnavailable) as failure:
                    await attempt_all(both_ways)
                assert failure.type is StoreUnavailable

            taken = [request.key for request in faulty.log if request.verb == "put_if_version"]
            left = [request.key for request in faulty.log if request.verb == "invalidate"]
            assert list(dict.fromkeys(taken)) == keys[: failed + 1]
            assert left == keys[:failed][::-1]
            for position, each_key in enumerate(keys):
                holder = await scene.holder(each_key)
                assert (holder is not None) == (busy and position == failed)
            if theirs:
                theirs.ensure_held()
                await done(theirs.release())

        await each(scene, range(8), fail)

    @scenario
    async def test_several_keys_are_released_though_one_fails(self, scene: Scene) -> None:
        """A release that fails for one of several keys goes on with the others, and can be called again."""

        async def fail(number: int, key: str) -> None:
            keys = [f"{key}:{letter}" for letter in "abcd"]
            faulty = scene.faulty()
            lock = scene.play.multi(faulty, keys, ttl=TTL, retry=(0, 0), auto_renew=False)
            holds = await attempt_all(lock)
            assert holds is not None
            assert [hold.key for hold in holds] == keys
            faulty.on("invalidate", len(keys) - number, lose_request)
            faulty.on("get", 1, lose_request)

            with pytest.raises(StoreUnavailable):
                await done(holds.release())

            held = [each_key for each_key in keys if await scene.holder(each_key) is not None]
            assert held == [keys[number]]
            await done(holds.release())
            assert await scene.holder(keys[number]) is None

        await each(scene, range(4), fail)

    @scenario
    async def test_of_several_keys_one_may_be_lost(self, scene: Scene) -> None:
        """The loss of one of several keys is told, its next holder left alone, and the others released."""
        keys = [f"{scene.key}:{letter}" for letter in "abc"]
        holds = await attempt_all(scene.play.multi(scene.store, keys, ttl=TTL, auto_renew=False))
        assert holds is not None
        await scene.vanish(keys[1])
        theirs = await take(scene.rival(keys[1]))

        with pytest.raises(LockLost):
            await done(holds.extend())
        with pytest.raises(LockLost):
            await done(holds.release())

        assert [await scene.holder(key) is None for key in keys] == [True, False, True]
        theirs.ensure_held()
        await done(theirs.release())
