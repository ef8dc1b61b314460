"""Values in Redis, each in a hash with its fence; written by one script, over a redis-py client of the user.

Readers take the field "value": ``client.hget("room:42", "value")``.  Key and fence are one key of Redis, so they are on
one node of a Cluster, expire together, and are evicted together: after that, any fence is accepted again.
"""

from __future__ import annotations

from importlib.resources import files
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Final

from caslock.errors import StaleFence
from caslock.fencing.fence import checked

if TYPE_CHECKING:
    import redis
    import redis.asyncio
    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster

_SCRIPT: Final = files("caslock.fencing").joinpath("write_value.lua").read_bytes()


def write_value(client: redis.Redis | RedisCluster, name: str, value: str | bytes | float, *, fence: int) -> None:
    """Set the field "value" of the hash `name`, unless it was set with a larger fence.

    Args:
        client: a redis-py client for blocking code, standalone, of a Sentinel or of a Cluster; not a pipeline.
        name: the key in Redis.  The hash has only the fields "value" and "fence".
        value: as redis-py takes it.
        fence: `Hold.fence` of the writer.

    Raises:
        StaleFence: the hash has a larger fence; nothing was written.
        redis.RedisError: as redis-py raises it.  If there was no answer, the value may have been written.  Call it
            again with the same fence.
        ValueError, TypeError: `fence` is not a positive int, or the client is for asyncio.

    """
    checked(fence)
    if iscoroutinefunction(client.execute_command):
        raise TypeError("this client is for asyncio: use write_value_async")
    _check(name, fence, client.register_script(_SCRIPT)(keys=[name], args=[fence, value]))


async def write_value_async(
    client: redis.asyncio.Redis | AsyncRedisCluster, name: str, value: str | bytes | float, *, fence: int
) -> None:
    """Do the same by a client of ``redis.asyncio``; see `write_value`."""
    checked(fence)
    if not iscoroutinefunction(client.execute_command):
        raise TypeError("this client is for blocking code: use write_value")
    _check(name, fence, await client.register_script(_SCRIPT)(keys=[name], args=[fence, value]))


def _check(name: str, fence: int, answer: str | bytes | None) -> None:
    if answer is not None:
        raise StaleFence(name, fence, int(answer))
