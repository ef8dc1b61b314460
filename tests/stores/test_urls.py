"""What a URL of a store with a server says, and what is refused before any request: nothing is connected to."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from caslock import connect, connect_async
from caslock.store import ABSENT
from tests.stores.opening import KINDS, QUOTED, each_verb


def kind_of(url: str) -> str:
    scheme = url.lower().partition(":")[0].partition("+")[0]
    if scheme in {"unix", "rediss"}:
        return "redis"
    return scheme if scheme in KINDS else scheme.removesuffix("s")


LOCATIONS = {
    "dynamodb://eu-central-1": "dynamodb://eu-central-1/caslock",
    "dynamodb://local?endpoint=http://127.0.0.1:8000": "dynamodb://local/caslock?endpoint=http://127.0.0.1:8000",
    "dynamodb://us-gov-west-1/my.locks_1-a/?timeout=3": "dynamodb://us-gov-west-1/my.locks_1-a",
    "dynamodb://eu-central-1/locks?endpoint=http%3A%2F%2Flocalhost%3A8000/": (
        "dynamodb://eu-central-1/locks?endpoint=http://localhost:8000"
    ),
    "etcd://db": "etcd://db:2379",
    f"etcd://me:{QUOTED}@db:2380/?timeout=1": "etcd://db:2380",
    "etcd://b,a:1,b,[::1]": "etcd://[::1]:2379,a:1,b:2379",
    "etcds://db?prefix=locks/": "etcds://db:2379?prefix=locks/",
    "hazelcast://b:5702,a": "hazelcast://a:5701,b:5702/caslock",
    f"hazelcast://u:{QUOTED}@a/locks?timeout=3": "hazelcast://a:5701/locks",
    "hazelcast://a/locks/?cluster=main%20one": "hazelcast://a:5701/locks?cluster=main%20one",
    "hazelcast://[::1]:5702/": "hazelcast://[::1]:5702/caslock",
    "memcached://host": "memcached://host:11211",
    "memcached://host:1/": "memcached://host:1",
    "memcached://[::1]:2?timeout=2": "memcached://[::1]:2",
    "MEMCACHED://host": "memcached://host:11211",
    "memcached:///tmp/a%20b.sock?timeout=0.5": "memcached:///tmp/a%20b.sock",
    "memcached://host?prefix=locks:&timeout=1": "memcached://host:11211?prefix=locks:",
    "nats://db": "nats://db:4222/caslock",
    f"nats://me:{QUOTED}@db:4223/locks?timeout=1&replicas=3": "nats://db:4223/locks",
    "nats://b,a:1,b,[::1]": "nats://[::1]:4222,a:1,b:4222/caslock",
    f"natss://{QUOTED}@db": "natss://db:4222/caslock",
    f"postgresql://me:{QUOTED}@db/app": "postgresql://db:5432/app",
    "postgresql+psycopg://db:6000/app?sslmode=require&timeout=1": "postgresql://db:6000/app",
    "postgresql:///app?host=/run/postgresql": "postgresql:///run/postgresql:5432/app",
    "postgresql://[::1]/app": "postgresql://[::1]:5432/app",
    f"mariadb://me:{QUOTED}@db/app": "mysql://db:3306/app",
    f"mysql+pymysql://me:{QUOTED}@db/app": "mysql://db:3306/app",
    "redis://": "redis://localhost:6379/0",
    f"redis://user:{QUOTED}@h:1/2": "redis://h:1/2",
    f"rediss://:{QUOTED}@h": "rediss://h:6379/0",
    "Rediss://h": "rediss://h:6379/0",
    "redis://[::1]:7?db=4": "redis://[::1]:7/4",
    f"UNIX://user:{QUOTED}@/run/redis.sock?db=1": "unix:///run/redis.sock?db=1",
    f"redis+cluster://user:{QUOTED}@b:1,[::1]:2,a?prefix=p": "redis+cluster://[::1]:2,a:6379,b:1?prefix=p",
    "Rediss+Cluster://a": "rediss+cluster://a:6379",
    f"redis+sentinel://user:{QUOTED}@b:1,a/mine/2?sentinel_password=word": "redis+sentinel://a:26379,b:1/mine/2",
    "rediss+sentinel://a:1,[::1]:2/mine": "rediss+sentinel://[::1]:2,a:1/mine/0",
    "tair://": "tair://localhost:6379/0",
    f"tair://user:{QUOTED}@h:1/2?prefix=p:": "tair://h:1/2?prefix=p:",
    f"tairs://:{QUOTED}@h?socket_timeout=1": "tairs://h:6379/0",
    "TAIR://[::1]:7?db=4": "tair://[::1]:7/4",
    "zookeeper://db": "zookeeper://db:2181/caslock",
    "zookeeper://db/": "zookeeper://db:2181/caslock",
    f"zookeeper://me:{QUOTED}@db:1,db:2/a/b/?timeout=3": "zookeeper://db:1,db:2/a/b",
    "zookeeper://b,a:7": "zookeeper://a:7,b:2181/caslock",
    "zookeeper://[::1]:7/x%20y": "zookeeper://[::1]:7/x%20y",
    "zookeepers://db:7": "zookeepers://db:7/caslock",
}


@pytest.mark.parametrize("url", LOCATIONS)
def test_the_location_names_the_place_and_no_user(url: str) -> None:
    """However a URL is written, and in whatever order it names servers, a place has one location, without a secret."""
    makes: tuple[Callable[[str], Any], ...] = (connect, connect_async)
    for make, kind in zip(makes, KINDS[kind_of(url)], strict=True):
        if make is connect or "+pymysql" not in url:  # a driver for blocking code
            store = make(url)
            assert type(store) is kind
            assert store.traits.location == LOCATIONS[url]
            assert repr(store) == f"{kind.__name__}({LOCATIONS[url]!r})"
            if "host=/" not in url:
                assert make(LOCATIONS[url]).traits.location == LOCATIONS[url], "the location is no URL"


TIMEOUTS = {
    "timeout=soon": "number of seconds",
    "timeout=nan": "timeout must be",
    "timeout=0": "above 0",
    "timeout=1&timeout=2": "given twice|number of seconds",
}

PLACES = {"dynamodb": "eu-central-1", "postgresql": f"me:{QUOTED}@localhost/app", "memcached": "localhost"}
"""Where a server is, if not at "localhost", and with whose password."""

BAD = {
    "dynamodb://": "a DynamoDB URL is",
    "dynamodb://localhost:8000/locks": "a DynamoDB URL is",
    f"dynamodb://key:{QUOTED}@eu-central-1/locks": "a DynamoDB URL is",
    "dynamodb://locks": "locks is no region of AWS, such as eu-central-1: a DynamoDB URL is",
    "dynamodb://eu-central-1/locks?prefix=p": "a DynamoDB URL is",
    "dynamodb://eu-central-1/lo": "a table of DynamoDB has a name",
    "dynamodb://eu-central-1/one/two": "a table of DynamoDB has a name",
    "dynamodb://eu-central-1?endpoint=localhost:8000": "the endpoint of a DynamoDB is",
    f"dynamodb://eu-central-1?endpoint=http://key%3A{QUOTED}%40localhost": "the endpoint of a DynamoDB is",
    "dynamodb://eu-central-1?endpoint=http://localhost:port": "the endpoint of a DynamoDB is",
    "etcd://localhost/path": "an etcd URL is",
    "etcd://localhost?cacert=/x": "an etcd URL is",
    "etcd://localhost:99999": "the port of",
    "etcd://me@localhost": "both a user and a password",
    "hazelcast://a/one/two": "a Hazelcast URL is",
    "hazelcast://a?prefix=p": "a Hazelcast URL is",
    "hazelcast://a?cluster=": "a Hazelcast URL is",
    "hazelcast://root@a": "a Hazelcast URL is",
    f"hazelcast://:{QUOTED}@a": "a Hazelcast URL is",
    "memcached://": "a memcached URL is",
    "memcached:///": "a memcached URL is",
    "memcached:host": "must begin with a scheme",
    "memcached://host/0": "a memcached URL is",
    "memcached://:1": "a memcached URL is",
    f"memcached://me:{QUOTED}@host": "a memcached URL is",
    "memcached://host?nonsense=1": "a memcached URL is",
    "memcached://host?timeout=": "number of seconds",
    "postgresql://host/app?timeout=": "the option timeout of a database URL has no value",
    "mysql://host/app?connect_timeout=&timeout=3": "the option connect_timeout of a database URL has no value",
    "nats://localhost?cacert=/x": "a NATS URL is",
    "nats://localhost/a/b": "names a bucket",
    "nats://localhost/a.b": "names a bucket",
    "nats://localhost?replicas=0": "from 1 to 5",
    "nats://me:@localhost": "both a user and a password",
    "tair+unix:///hunter2": "unknown scheme",
    f"tair://u:{QUOTED}@h/abc": "number of a database",
    f"tair://u:{QUOTED}@h?sockettimeout=1": "check the option sockettimeout",
    f"tair://u:{QUOTED}@h:99999": "port of a Redis URL",
    "tair://u:p@ss/w0rd?@h": "percent-encode",
    "zookeeper:///path": "a ZooKeeper URL is",
    "zookeeper://nobody@db": "a ZooKeeper URL is",
    "zookeeper://db?prefix=x": "a ZooKeeper URL is",
    "zookeeper://db?ca=x": "a ZooKeeper URL is",
    "zookeepers://db?check_hostname=perhaps": "a ZooKeeper URL is",
    "zookeepers://db?ca=/no/such/file": "can't be used",
    "zookeeper://db//x": "names a znode",
    "zookeeper://db/a/../b": "names a znode",
    "zookeeper://db/zookeeper/x": "names a znode",
}
"""More of them, of Redis and memcached above all, are in `tests/api/test_connect.py`."""

SERVERS = {
    "": " URL is",
    "localhost:1,": " URL is",
    "localhost,,localhost": " URL is",
    "[::1": " URL is",
    "localhost?unknown=1": " URL is",
    "localhost:0": "the port of",
    "localhost:port": "the port of",
}
FILES = {"key=/x": "needs", "cacert=/none": "No such file", "cacert=/dev/null": "no certificate"}

OF_SERVERS = {
    f"{kind}://{servers}": sentence
    for kind, (servers, sentence) in itertools.product(("etcd", "hazelcast", "nats", "zookeeper"), SERVERS.items())
} | {f"{kind}s://localhost?{file}": FILES[file] for kind, file in itertools.product(("etcd", "nats"), FILES)}

OF_A_TIMEOUT = {
    f"{kind}://{PLACES.get(kind, f'me:{QUOTED}@localhost')}?{option}": sentence
    for kind, (option, sentence) in itertools.product(
        ("dynamodb", "etcd", "hazelcast", "memcached", "nats", "postgresql", "zookeeper"), TIMEOUTS.items()
    )
}


ALL_BAD = BAD | OF_SERVERS | OF_A_TIMEOUT


@pytest.mark.parametrize("url", ALL_BAD)
def test_errors_of_a_url_tell_what_to_write(url: str) -> None:
    """Each is a `ValueError` that says what is wrong, and shows no secret."""
    for make in (connect, connect_async):
        with pytest.raises(ValueError, match=ALL_BAD[url]) as caught:
            make(url)
        assert "w0rd" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_another_kind_are_refused(kind: str) -> None:
    """What is neither a URL nor a client, a timeout that is given twice, and settings that the store has not."""
    url, of_clients = f"{kind}://{PLACES.get(kind, 'localhost')}", kind in {"memcached", "redis", "tair"}
    for each in KINDS[kind]:
        with pytest.raises(TypeError, match=r"not (builtins\.)?int|expected a URL"):
            each(5)
        with pytest.raises(ValueError, match=r"URL|begins with|the database must be") as caught:
            (each.from_url if of_clients else each)(f"http://me:{QUOTED}@localhost")
        assert "w0rd" not in str(caught.value)
        if not of_clients:
            with pytest.raises(ValueError, match="once"):
                each(f"{url}?timeout=1", timeout=1)
    if of_clients or kind == "etcd":
        with pytest.raises(ValueError, match="not both"):
            connect(f"{url}?prefix=a", prefix="b")
        with pytest.raises(TypeError, match="prefix must be a str"):
            connect(url, prefix=5)  # type: ignore[arg-type] # which is the test
    else:
        with pytest.raises(ValueError, match="has no prefix"):
            connect(url, prefix="p")


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"mariadb", "redis", "tair"}))
def test_a_request_may_take_as_long_as_the_url_says(kind: str) -> None:
    """Two seconds, or memcached's five, if it says nothing."""
    url = f"{kind}://{PLACES.get(kind, 'localhost')}"
    for make in (connect, connect_async):
        assert make(f"{url}?timeout=7").traits.request_timeout == 7
    # In these tests, stores are more patient.
    makes = "(f(sys.argv[1]) for f in (caslock.connect, caslock.connect_async))"
    code = f"import caslock, sys; print(*(store.traits.request_timeout for store in {makes}))"
    said = subprocess.run([sys.executable, "-c", code, url], capture_output=True, check=True, text=True).stdout
    assert [float(seconds) for seconds in said.split()] == [5 if kind == "memcached" else 2] * 2


VALUES = [(b"x" * 4097, 1.0, "4096 bytes"), *((b"", ttl, "ttl must be") for ttl in (0, -1, float("nan"), 1e13))]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_refused_before_any_request(kind: str) -> None:
    """A value that is too long, a ttl or a key that is none: there is no server at all."""
    place = "eu-central-1?endpoint=http://127.0.0.1:1" if kind == "dynamodb" else "127.0.0.1:1"
    with connect(f"{kind}://{place}") as store:
        for (value, ttl, sentence), version in itertools.product(VALUES, (ABSENT, 5)):
            with pytest.raises(ValueError, match=sentence):
                store.put_if_version("key", value, version, ttl)
        for key in ("", "k" * 1025, "\ud800"):
            for act in each_verb(store, key, 1):
                with pytest.raises(ValueError, match=r"1 to 1,024 characters|lone surrogate"):
                    act()
