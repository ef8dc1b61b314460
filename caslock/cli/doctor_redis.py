"""What the settings of a Redis mean for locks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import redis

from caslock.cli.finding import FULL, clock, danger, note, warning
from caslock.stores.redis.url import read_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding

_OLDEST = (6, 2)


def examine(url: str) -> Iterator[Finding]:
    """Ask the server; raises an error of redis-py where it does not answer."""
    ours = read_url(url)
    with redis.Redis.from_url(ours.url, socket_timeout=5, socket_connect_timeout=5) as client:
        info: dict[str, Any] = client.info("everything")
        seconds, microseconds = client.time()
        yield from clock(seconds + microseconds / 1e6 - time.time())
        try:
            settings: dict[str, str] = client.config_get("save", "appendfsync", "min-replicas-to-write")
        except redis.ResponseError:  # a hosted Redis may forbid it
            settings = {}
            yield note("CONFIG is not allowed", "some settings are not known here", "Look at them where it is hosted")
    version = str(info["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        yield danger(f"version {version}", "caslock needs 6.2 or newer")
    if info.get("cluster_enabled"):
        yield danger("it is part of a Cluster", "keys of other nodes are refused", "Connect with a RedisCluster client")
    if info["role"] != "master":
        yield danger("it is a replica", "it refuses to write", "Name the primary, or use Sentinel.master_for")
    yield from _memory(info)
    yield from _persistence(info, settings)
    yield from _replicas(info, settings, ours.replicas)


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
    if there and not least:
        means = "a primary that is cut off goes on to give locks that the next primary does not know"
        yield warning("min-replicas-to-write is 0", means, "Set min-replicas-to-write 1")
