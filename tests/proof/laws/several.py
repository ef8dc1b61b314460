"""Several keys are taken in one order, all or nothing, and all are released whatever happens to one."""

from __future__ import annotations

from itertools import product

import pytest

from caslock.errors import StoreUnavailable
from caslock.testing.drive import done
from caslock.testing.faults import Fault, late, lose_reply, lose_request, unsent
from tests.proof.laws.scene import TTL, Scene, attempt_all, each, scenario, take


class SeveralKeys:
    @scenario
    async def test_several_keys_are_all_or_nothing(self, scene: Scene) -> None:
        """When one of several keys can't be had, those before it are released in reverse, and none is held."""

        async def fail(number: int, key: str) -> None:
            keys = [f"{key}:{letter}" for letter in "abcd"]
            busy = number < len(keys)
            theirs = await take(scene.rival(keys[number])) if busy else None
            faulty = scene.faulty(plain=True)
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
            faulty = scene.faulty(plain=True)
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
    async def test_one_request_for_several_keys_without_an_answer(self, scene: Scene) -> None:
        """Lost or late, it is settled for each key, and so is the release: all are held, and all are free then."""

        async def lose(fates: tuple[Fault | None, ...], key: str) -> None:
            faulty = scene.faulty()
            keys = [f"{key}:{letter}" for letter in "abc"]
            put, release = fates
            if put is not None:
                faulty.on("put_many", 1, put)
            holds = await attempt_all(scene.play.multi(faulty, keys, ttl=TTL, auto_renew=False))
            assert holds is not None
            await done(faulty.deliver())
            holds.ensure_held()
            await done(holds.extend())
            if release is not None:  # one request, except where a late put has to be kept out
                faulty.on("any", 1, release)
            await done(holds.release())
            await done(faulty.deliver())
            assert [await scene.holder(each_key) for each_key in keys] == [None] * len(keys)

        fates = (None, lose_request, lose_reply, unsent, late(), late(after=1), late(before=2))
        await each(scene, product(fates, repeat=2), lose)
