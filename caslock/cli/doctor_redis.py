"""What the settings of a Redis mean for locks."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import redis
from redis.cluster import ClusterNode, RedisCluster

from caslock.cli.finding import FULL, clock, danger, note, warning
from caslock.stores.redis.failures import ADVICE, NO_RIGHTS
from caslock.stores.redis.url import read_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding
    from caslock.stores.redis.url import RedisURL

_OLDEST: Final = (6, 2)
_MAJORITY: Final = 3
"""Of fewer, the loss of one leaves no majority."""


def examine(url: str) -> Iterator[Finding]:
    """Ask the server, or all primaries of a Cluster; raises an error of redis-py where one does not answer."""
    ours = read_url(url)
    single: Any = partial(redis.Redis.from_url, socket_timeout=5, socket_connect_timeout=5)
    with ExitStack() as stack:
        if ours.kind == "cluster":
            yield from _of_cluster(stack, ours, single)
            return
        client = stack.enter_context(ours.client(single))
        if ours.kind == "sentinel":
            for sentinel in client.connection_pool.sentinel_manager.sentinels:
                stack.callback(sentinel.close)
            yield from _of_sentinels(client, ours)
        yield from _rights(client, ours)
        info = client.info("everything")
        if info.get("cluster_enabled"):
            yield danger("it is part of a Cluster", "keys of other nodes are refused", "Use a redis+cluster:// URL")
        if info["role"] != "master":
            yield danger("it is a replica", "it refuses to write", "Name the primary, or use a redis+sentinel:// URL")
        yield from _of_primary(client, info, ours)


def _rights(client: Any, ours: RedisURL) -> Iterator[Finding]:  # noqa: ANN401 - untyped
    """Try what every lock needs, in forms that change nothing, on a key that is not there."""
    key = f"{ours.prefix}caslock-doctor-{uuid4()}"
    needed: list[tuple[object, ...]] = [("GET", key), ("SET", key, "", "XX"), ("DEL", key), ("TIME",)]
    needed += [("EVAL", "return 0", 1, key), ("EVALSHA", "0" * 40, 1, key)]
    needed += [("WAIT", 0, 1)] if ours.replicas else []
    refused = []
    for command in needed:
        try:
            client.execute_command(*command)
        except redis.exceptions.NoPermissionError:
            refused.append(str(command[0]).lower())
        except redis.ResponseError:  # there is no such script; or another server has the key, or is the primary
            pass
    if refused:
        where = f" on keys that begin with {ours.prefix!r}" if ours.prefix else ""
        what = f"this user may not use {', '.join(refused)}{where}"
        yield danger(what, "no lock can be acquired", ADVICE[NO_RIGHTS])


def _of_primary(client: Any, info: dict[str, Any], ours: RedisURL) -> Iterator[Finding]:  # noqa: ANN401 - untyped
    asked = time.time()
    seconds, microseconds = client.time()
    yield from clock(seconds + microseconds / 1e6, asked, time.time())
    settings = dict[str, str]()
    try:
        for name in ("save", "appendfsync", "min-replicas-to-write"):  # before 7.0 one at a time
            settings |= client.config_get(name)
    except redis.ResponseError:  # a hosted Redis may forbid it
        yield note("CONFIG is not allowed", "some settings are not known here", "Look at them where it is hosted")
    version = str(info["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        yield danger(f"version {version}", "caslock needs 6.2 or newer")
    yield from _memory(info)
    yield from _persistence(info, settings)
    yield from _replicas(info, settings, ours.replicas)


def _of_cluster(stack: ExitStack, ours: RedisURL, single: Any) -> Iterator[Finding]:  # noqa: ANN401 - untyped
    """Say what is found on all primaries once, and else on which one."""
    pool = single(ours.url).connection_pool
    kind: Any = ClusterNode
    settings = {name: value for name, value in pool.connection_kwargs.items() if name not in ("host", "port", "db")}
    nodes = [kind(host, port) for host, port in ours.addresses]
    secure = issubclass(pool.connection_class, redis.SSLConnection)
    client: Any = stack.enter_context(RedisCluster(startup_nodes=nodes, ssl=secure, **settings))
    primaries = client.get_primaries()
    found: dict[Finding, list[str]] = {}
    for node in primaries:
        one = client.get_redis_connection(node)
        for finding in (*_rights(one, ours), *_of_primary(one, one.info("everything"), ours)):
            found.setdefault(finding, []).append(node.name)
    for finding, names in found.items():
        where = f"on {', '.join(names)}: " if len(names) < len(primaries) else ""
        yield finding._replace(what=where + finding.what)
    if len(primaries) < _MAJORITY:
        means = "no majority is left to choose a new primary when one fails"
        yield warning(f"the number of its primaries is {len(primaries)}", means, "Run three or more")


def _of_sentinels(client: Any, ours: RedisURL) -> Iterator[Finding]:  # noqa: ANN401 - untyped
    for sentinel in client.connection_pool.sentinel_manager.sentinels:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            there = 1 + int(sentinel.sentinel_master(ours.service)["num-other-sentinels"])
            if there < _MAJORITY:
                means = "no majority is left to fail over when one of them is down"
                yield warning(f"the number of its Sentinels is {there}", means, "Run three or more")
            return


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit = info["maxmemory_policy"], info["maxmemory"]
    if policy != "noeviction":
        what = f"maxmemory-policy is {policy}"
        cure = "Set maxmemory-policy noeviction"
        if limit:
            yield danger(what, "when memory is short, held locks are evicted, and others get them", cure)
        else:
            yield note(what, "without maxmemory nothing is evicted; with it, held locks would be", cure)
    if limit and info["used_memory"] >= FULL * limit:
        full = info["used_memory"] >= limit
        what = f"{info['used_memory'] / limit:.0%} of maxmemory is used"
        kind = danger if full else warning
        yield kind(what, "a full server refuses locks, and renewals", "Raise maxmemory, or use a server for locks only")


def _persistence(info: dict[str, Any], settings: dict[str, str]) -> Iterator[Finding]:
    cure = "Set appendonly yes, and appendfsync always, or restart only after the longest ttl"
    if info["aof_enabled"]:
        sync = settings.get("appendfsync", "everysec")
        if sync != "always":
            yield note(f"appendfsync is {sync}", "a power failure loses the locks of the last seconds", cure)
    elif settings.get("save") == "":
        yield warning("nothing is written to disk", "a restart frees every lock, while its holder works on", cure)
    else:
        yield warning("only snapshots are written to disk", "a restart frees all locks since the last one", cure)
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        yield danger("the last write to the append-only file has failed", "it refuses to write", "Look at its disk")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield warning("the last snapshot has failed", "it may refuse to write", "Look at its disk and its log")


def _replicas(info: dict[str, Any], settings: dict[str, str], asked: int) -> Iterator[Finding]:
    there, least = int(info["connected_slaves"]), int(settings.get("min-replicas-to-write") or 0)
    if max(asked, least) > there:
        what = f"{max(asked, least)} replicas have to acknowledge a write, and there are {there}"
        yield danger(what, "no lock can be acquired", "Start replicas, or lower replicas= or min-replicas-to-write")
    elif there and not asked:
        means = "a failover to a replica that lags behind forgets the newest locks, and others get them"
        yield warning(f"writes do not wait for the {there} replicas", means, "Connect with ?replicas=1")
    if there and settings and not least:
        means = "a primary that is cut off goes on to give locks that the next primary does not know"
        yield warning("min-replicas-to-write is 0", means, "Set min-replicas-to-write 1")
