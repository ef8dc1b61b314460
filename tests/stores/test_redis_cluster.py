"""`RedisStore` and `AsyncRedisStore` on a real Redis Cluster of three nodes on the loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot

from caslock.errors import StaleFence, StoreError, StoreUnavailable
from caslock.fencing import write_value, write_value_async
from caslock.store import ABSENT, WOKEN, Put, Removal
from caslock.stores.redis import AsyncRedisStore, RedisStore
from caslock.testing.steps import in_a_thread
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import Opening, apis, made, put, unsent
from tests.support.locations import until
from tests.support.loops import in_a_loop
from tests.support.servers import HOST, REDIS, Server, absent, free_port, private

SLOTS = 16384

TELLS = int(redis.__version__.split(".")[0]) >= 7
"""Whether a client of redis-py tells which nodes it was given: a store can't be made of one that does not."""


class Nodes:
    def __init__(self, servers: list[Server], buses: list[int]) -> None:
        self.servers = servers
        self.buses = buses
        self.admins = [redis.Redis(host=HOST, port=server.port) for server in servers]
        self.ids = [str(admin.cluster("MYID"), "ascii") for admin in self.admins]

    def join(self) -> None:
        for number in range(3):
            first, after = SLOTS * number // 3, SLOTS * (number + 1) // 3
            self.say(number, "CLUSTER", "ADDSLOTSRANGE", first, after - 1)
            self.say(number, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server, bus in list(zip(self.servers, self.buses, strict=True))[1:]:
            self.say(0, "CLUSTER", "MEET", HOST, server.port, bus)
        assert until(lambda: all(self.agreed(number) for number in range(3)))

    def agreed(self, number: int) -> bool:
        info = self.say(number, "CLUSTER", "INFO")
        text = info if isinstance(info, dict) else dict(line.split(":") for line in str(info, "ascii").split())
        known = (text["cluster_state"], text["cluster_known_nodes"], text["cluster_slots_assigned"])
        return bool(known == ("ok", "3", str(SLOTS)))

    def owner(self, key: str) -> int:
        """The number of the node that has the key's slot at the start."""
        return key_slot(key.encode()) * 3 // SLOTS

    def say(self, number: int, *command: object) -> Any:  # noqa: ANN401 - as redis-py answers
        return self.admins[number].execute_command(*command)  # type: ignore[no-untyped-call]

    def begin_move(self, key: str, source: int, target: int) -> None:
        slot = key_slot(key.encode())
        self.say(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.say(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])

    def carry(self, key: str, source: int, target: int) -> None:
        self.say(source, "MIGRATE", HOST, self.servers[target].port, key, 0, 5000)

    def end_move(self, key: str, source: int, target: int) -> None:
        for number in (target, source, ({0, 1, 2} - {source, target}).pop()):
            self.say(number, "CLUSTER", "SETSLOT", key_slot(key.encode()), "NODE", self.ids[target])


@pytest.fixture(scope="module")
def module_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster for this file."""
    with started(tmp_path_factory) as nodes:
        yield nodes


@contextlib.contextmanager
def started(folders: pytest.TempPathFactory) -> Iterator[Nodes]:
    if os.environ.get(REDIS.variable) or not REDIS.binary():
        absent("no redis-server on the PATH to run as a Redis Cluster: `make servers` installs one")
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "300000", "--cluster-require-full-coverage", "no")
    with contextlib.ExitStack() as stack:
        servers, buses = [], [free_port() for _ in range(3)]
        for bus in buses:
            ports = ("--cluster-announce-ip", HOST, "--cluster-port", str(bus))
            servers.append(stack.enter_context(private(REDIS, folders.mktemp("cluster"), *options, *ports)))
        nodes = Nodes(servers, buses)
        nodes.join()
        yield nodes


@pytest.fixture
def nodes(module_nodes: Nodes) -> Nodes:
    """The cluster, empty."""
    for admin in module_nodes.admins:
        admin.flushall()
    return module_nodes


api = apis(partial(made, RedisStore), partial(made, AsyncRedisStore))

Opened = Any  # a store of either API
New = Any  # opens one


@pytest.fixture
def new(api: Opening) -> New:
    """Open a store of either API on a cluster."""

    def open_store(nodes: Nodes, prefix: str = "", **options: Any) -> Opened:  # noqa: ANN401 - redis-py's
        client: Any
        if not TELLS:
            hosts = ",".join(f"{HOST}:{server.port}" for server in nodes.servers)
            client = f"redis+cluster://{hosts}?{urlencode(options)}"
        elif api.blocking:
            node: Any = ClusterNode  # untyped
            client = RedisCluster(startup_nodes=[node(HOST, server.port) for server in nodes.servers], **options)
            client.close()  # the store needs no more than its settings
        else:
            spread = [AsyncClusterNode(HOST, server.port) for server in nodes.servers]
            client = AsyncRedisCluster(startup_nodes=spread, **options)
        return api.open(client, prefix=prefix)

    return open_store


def test_every_key_goes_to_the_node_of_its_slot(nodes: Nodes, new: New) -> None:
    """The three verbs work on keys of all nodes, and each is one request to one node."""
    store = new(nodes)
    for turn in range(2):
        for name in (f"k{number}" for number in range(30)):
            entry = put(store, name)
            assert store.get(name) == entry
            assert store.put_if_version(name, b"b", ABSENT, 30) == entry
            assert nodes.admins[nodes.owner(name)].exists(name)
            assert store.invalidate(name, entry.version) is None
            assert store.get(name) is None
        if turn == 0:
            for admin in nodes.admins:
                admin.config_resetstat()
    stats = [admin.info("commandstats") for admin in nodes.admins]
    assert not any("cmdstat_cluster|slots" in each for each in stats)
    assert sum(each["cmdstat_evalsha"]["calls"] for each in stats) == 30 * 3
    assert sum(each["cmdstat_get"]["rejected_calls"] + each["cmdstat_evalsha"]["rejected_calls"] for each in stats) == 0
    assert not any(admin.dbsize() for admin in nodes.admins)


def test_the_location_is_the_nodes_that_the_client_was_given(nodes: Nodes, new: New) -> None:
    """Sorted, the same text in every process."""
    ports = sorted(server.port for server in nodes.servers)
    hosts = ",".join(f"{HOST}:{port}" for port in ports)
    assert new(nodes).traits.location == f"redis+cluster://{hosts}"
    assert new(nodes, prefix="p:").traits.location == f"redis+cluster://{hosts}?prefix=p:"


@pytest.mark.parametrize("kind", [RedisCluster, AsyncRedisCluster])
def test_a_client_that_does_not_tell_its_nodes_is_refused(nodes: Nodes, kind: Any) -> None:  # noqa: ANN401 - it differs
    """As before redis-py 7: those it has found may differ from process to process, and so would the order of keys."""
    client = kind(host=HOST, port=nodes.servers[0].port)
    if TELLS:
        del client.startup_nodes
    with pytest.raises(TypeError, match=r"redis-py 7 .* redis\+cluster://"):
        (RedisStore if kind is RedisCluster else AsyncRedisStore)(client)
    if kind is RedisCluster:
        client.close()


def test_a_url_names_nodes_of_which_one_may_be_down(nodes: Nodes, api: Opening) -> None:
    """The others are asked for the map; keys of all slots are served, and nothing is sent before."""
    places = ",".join(f"{HOST}:{port}" for port in (free_port(), *(server.port for server in nodes.servers)))
    store = api.open(f"redis+cluster://{places}?socket_timeout=20")
    for key in "abc":
        assert store.invalidate(key, put(store, key).version) is None


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_slot_that_moves_is_followed(nodes: Nodes, new: New, protocol: int, request: pytest.FixtureRequest) -> None:
    """Every verb works before, during and after: ASK is followed for what has gone ahead, MOVED once it is over."""
    store = new(nodes, protocol=protocol)
    tag = f"{{{request.node.name}}}"  # a slot of its own, for it does not come back
    source = nodes.owner(tag)
    target = (source + 1) % 3
    kept, carried, late = (put(store, tag + name) for name in ("kept", "carried", "late"))
    nodes.begin_move(tag, source, target)
    nodes.carry(tag + "carried", source, target)
    assert store.get(tag + "carried") == carried
    carried = put(store, tag + "carried", b"b", carried.version)
    for admin in nodes.admins:
        admin.script_flush()
    carried = put(store, tag + "carried", b"c", carried.version)
    assert store.get(tag + "kept") == kept
    kept = put(store, tag + "kept", b"b", kept.version)
    new_one = put(store, tag + "new")
    assert nodes.say(target, "CLUSTER", "COUNTKEYSINSLOT", key_slot(tag.encode())) == 2
    assert store.invalidate(tag + "new", new_one.version) is None
    assert store.invalidate(tag + "kept", kept.version) is None
    assert store.get(tag + "kept") is None
    assert store.put_when_absent(tag + "carried", b"x", 30, 0.01) == carried
    nodes.carry(tag + "late", source, target)
    nodes.end_move(tag, source, target)
    assert store.get(tag + "late") == late
    for _ in range(3):
        entry = put(store, tag + "after")
        assert store.invalidate(tag + "after", entry.version) is None
    assert store.invalidate(tag + "carried", carried.version) is None


@pytest.mark.parametrize("key", ["k", "{a}b", "a{b"])
def test_a_removal_wakes_a_waiter(nodes: Nodes, new: New, key: str) -> None:
    """What belongs to a key is on its node."""
    store, other = new(nodes), new(nodes)
    entry = put(store, key)
    admin = nodes.admins[nodes.owner(key)]
    waiter = in_a_thread(partial(store.put_when_absent, key, b"w", 30, 20))
    assert until(lambda: any(each["cmd"] == "blpop" and "b" in each["flags"] for each in admin.client_list()))
    assert other.invalidate(key, entry.version) is WOKEN
    written = waiter.result(50)
    assert written.value == b"w"
    assert other.invalidate(key, written.version) is None
    assert admin.dbsize() == 0


def test_a_waiter_follows_a_slot_that_moves(nodes: Nodes, new: New, request: pytest.FixtureRequest) -> None:
    """The wait ends with the move, and the put is made where the slot is now."""
    store, key = new(nodes), request.node.name
    source = nodes.owner(key)
    target = (source + 1) % 3
    entry = put(store, key)
    wait, blocked = partial(store.put_when_absent, key, b"w", 30, 1), nodes.admins[source].client_list
    waiter = in_a_thread(wait)
    while not any(each["cmd"] == "blpop" and "b" in each["flags"] for each in blocked()):
        waiter = in_a_thread(wait) if waiter.done() else waiter
    nodes.begin_move(key, source, target)
    for name in (key.encode(), b"{%b}\xffwaiters" % key.encode()):
        nodes.say(source, "MIGRATE", HOST, nodes.servers[target].port, name, 0, 5000)
    nodes.end_move(key, source, target)
    assert waiter.result(50) == entry
    assert store.get(key) == entry


def test_a_key_that_can_have_nothing_beside_it_is_not_waited_for(nodes: Nodes, new: New) -> None:
    """Its slot has no other name that we could know: the caller sleeps."""
    store = new(nodes)
    for key in ("a}b", "{}"):
        entry = put(store, key)
        unsent(partial(store.put_when_absent, key, b"w", 30, 20), "can't serve another waiter now")
        unsent(partial(store.wait_while, key, entry.version, 20), "can't serve another waiter now")
        entry = put(store, key, b"b", entry.version)
        assert store.invalidate(key, entry.version) is None


def test_several_keys_travel_together_within_a_slot_only(nodes: Nodes, new: New) -> None:
    """None, and nothing was sent, where they live apart."""
    store = new(nodes)
    puts = [Put(f"{{one}}{name}", b"a", ABSENT, 30.0) for name in "abc"]
    entries = store.put_many(puts)
    assert [entry.value for entry in entries] == [b"a"] * 3
    assert store.put_many([Put("a", b"a", ABSENT, 30.0), Put("b", b"a", ABSENT, 30.0)]) is None
    assert store.get("a") is None
    removals = [Removal(put.key, entry.version) for put, entry in zip(puts, entries, strict=True)]
    assert store.invalidate_many([*removals, Removal("a", 5)]) is None
    assert store.invalidate_many(removals) == [None] * 3
    assert store.put_many([Put("{x}}", b"a", ABSENT, 30.0)])[0].value == b"a"


def test_a_list_has_the_keys_of_all_nodes(nodes: Nodes, new: New) -> None:
    """Each once, wherever it is."""
    store = new(nodes, prefix="p:")
    entries = {key: put(store, key) for key in (f"k{number}" for number in range(50))}
    assert len({nodes.owner("p:" + key) for key in entries}) == 3

    assert dict(store.list("k")) == entries


@in_a_loop
async def test_many_tasks_use_few_connections_of_each_node(nodes: Nodes) -> None:
    """Batches are made per node."""
    options = "client_name=tasks&socket_timeout=20&socket_connect_timeout=20"
    store = AsyncRedisStore.from_url(f"redis+cluster://{HOST}:{nodes.servers[0].port}?{options}")

    async def work(key: str) -> None:
        entry = await store.put_if_version(key, b"a", ABSENT, 30)
        assert entry is not None
        assert await store.invalidate(key, entry.version) is None

    await asyncio.gather(*(work(f"t{number}") for number in range(500)))
    for admin in nodes.admins:
        names = [each["name"] for each in admin.client_list()]
        assert names.count("tasks") == 1
    await store.aclose()


@pytest.mark.long
def test_a_lost_node_is_unavailable_and_the_others_serve(tmp_path_factory: pytest.TempPathFactory, new: New) -> None:
    """The map is read again, from any node that answers; the node that comes back is found."""
    with started(tmp_path_factory) as nodes:
        store = new(nodes, socket_timeout=1)
        keys = {nodes.owner(key): key for key in (f"k{number}" for number in range(50))}
        entries = {key: put(store, key) for key in keys.values()}
        body: Any = nodes.servers[0].body
        body.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                store.get(keys[0])
        for number in (1, 2):
            assert store.get(keys[number]) == entries[keys[number]]
        body.start()
        nodes.servers[0].wait()

        def back() -> bool:
            with contextlib.suppress(StoreError):
                return store.get(keys[0]) is None
            return False

        assert until(back)
        put(store, keys[0])
        for server in nodes.servers:
            server_body: Any = server.body
            server_body.kill()
        for key in keys.values():
            with pytest.raises(StoreUnavailable):
                store.get(key)


@pytest.mark.long
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_nodes_that_are_stopped_cost_two_timeouts(nodes: Nodes, new: New, *, warm: bool) -> None:
    """A verb ends within one timeout, and one more to load the map; a stopped node keeps nobody from the others."""
    timeout = 0.6

    def ends(verb: Callable[[], object], most: float) -> None:
        with Stopwatch() as watch, pytest.raises(StoreUnavailable):
            verb()
        assert watch.seconds <= most

    keys = {nodes.owner(key): key for key in (f"k{number}" for number in range(50))}
    store = new(nodes, socket_timeout=timeout, socket_connect_timeout=timeout)
    if warm:
        for key in keys.values():
            put(store, key)
    try:
        nodes.servers[0].pause()
        for _ in range(3):
            ends(lambda: store.get(keys[0]), 2 * timeout)
            store.get(keys[1])  # the map comes from any node that answers
        for server in nodes.servers[1:]:
            server.pause()
        for _ in range(2):
            for key in keys.values():
                ends(lambda key=key: store.put_if_version(key, b"v", ABSENT, 30), 2 * timeout)  # type: ignore[misc] # it takes none
    finally:
        for server in nodes.servers:
            server.resume()
        assert until(lambda: all(nodes.agreed(number) for number in range(3)))


def test_a_guarded_value_lives_on_the_node_of_its_slot(nodes: Nodes) -> None:
    """`caslock.fencing.write_value` works on clusters, by clients of both APIs, and with a hash tag or without."""

    async def write(name: str, fence: int) -> None:
        async with AsyncRedisCluster(host=HOST, port=nodes.servers[0].port) as client:
            await write_value_async(client, name, "Bob", fence=fence)

    client = RedisCluster(host=HOST, port=nodes.servers[0].port)
    with contextlib.closing(client):
        for name in ("room:1", "room:2", "room:3", "room:4", "{room}:5"):
            write_value(client, name, "Ada", fence=5)
            asyncio.run(write(name, 6))
            with pytest.raises(StaleFence):
                write_value(client, name, "Ada", fence=5)
            with pytest.raises(StaleFence):
                asyncio.run(write(name, 4))
            assert nodes.admins[nodes.owner(name)].hget(name, "value") == b"Bob"
