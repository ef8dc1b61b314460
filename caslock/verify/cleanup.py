"""Removes the keys of a run, which all begin with its prefix."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from caslock.errors import StoreError
from caslock.store import ABSENT
from caslock.stores.shared.options import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from caslock.store import Store
    from caslock.verify.plan import Plan

PATIENCE: Final = 12.0
"""Seconds after which it gives up if it has removed none of the keys meanwhile."""


@contextlib.contextmanager
def put_for_a_moment(store: Store, plan: Plan, name: str, ttl: float, size: int = 1) -> Iterator[str]:
    """Have an entry in the store during the ``with`` block, and none afterwards, however the block ends; give its key.

    Raises whatever the store raises.
    """
    key, entry = f"{plan.prefix}{name}", None
    try:
        entry = store.put_if_version(key, key.encode().ljust(size), ABSENT, ttl)
        yield key
        if entry is not None:
            store.invalidate(key, entry.version)
    except StoreError:
        if entry is not None:
            with contextlib.suppress(StoreError):  # then it lasts for its ttl
                store.invalidate(key, entry.version)
        raise
    except BaseException:  # such as KeyboardInterrupt, also in the middle of a put
        remove_keys(store, plan, [key])
        raise


def remove_keys(store: Store, plan: Plan, keys: Iterable[str]) -> bool:
    """Remove `keys`, and what the store keeps beside them; tells whether that has been done."""
    time.sleep(0.05)  # for a request of a process that was just killed
    end = time.monotonic() + PATIENCE
    left = list(keys)
    while left and time.monotonic() < end:
        try:
            entry = store.get(left[-1])
            if entry is None or not store.invalidate(left[-1], entry.version):
                left.pop()
                end = time.monotonic() + PATIENCE
        except ValueError:  # not a key that this store can have: nothing was put
            left.pop()
        except StoreError:
            time.sleep(0.1)
    if not plan.factory and split(plan.url).scheme in ("redis", "rediss", "unix"):
        _remove_redis_lists(plan, end)
    return not left


def _remove_redis_lists(plan: Plan, end: float) -> None:
    """Remove the lists beside the keys, in which clients wait; Redis itself picks the names that begin with ours."""
    import redis  # noqa: PLC0415 - an extra

    client: Any = redis.Redis.from_url(plan.url, socket_timeout=2.0)
    with contextlib.suppress(redis.RedisError), client:
        for name in client.scan_iter(match=f"{plan.prefix}*", count=1000):
            client.delete(name)
            if time.monotonic() > end:
                return
