"""`connect` and `connect_async`: which store a URL makes, and that no error shows a secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import caslock
from caslock import connect, connect_async
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent

BOTH = pytest.mark.parametrize("make", [connect, connect_async])

PLUGIN = """
from caslock.stores.memory import AsyncMemoryStore, MemoryStore

class Shop(MemoryStore):
    @classmethod
    def from_url(cls, url):
        store = cls()
        store.url = url
        return store

def shop(url):
    return Shop.from_url(url)

class AsyncShop(AsyncMemoryStore):
    @classmethod
    def from_url(cls, url):
        return cls(Shop.from_url(url))

def clumsy(url):
    try:
        int(url.partition("://")[2].partition("@")[0].partition(":")[2])
    except ValueError as error:
        raise RuntimeError("no") from error
    raise ValueError("the host is down")
"""

ENTRY_POINTS = """
[caslock.stores]
shop = shop_store:Shop
stall = shop_store:shop
clumsy = shop_store:clumsy
redis = shop_store:shop

[caslock.async_stores]
shop = shop_store:AsyncShop
bazaar = shop_store:AsyncShop
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with stores of somebody else's."""
    (tmp_path / "shop_store.py").write_text(PLUGIN)
    folder = tmp_path / "shop_store-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-store\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def everything_told(error: BaseException | None) -> str:
    """Join all texts that hang on an error, in every direction."""
    if error is None:
        return ""
    return f"{error} {error!r}" + everything_told(error.__cause__) + everything_told(error.__context__)


LEAKY = [
    "redis://gast:hunter2@host:port/0",
    "redis://gast:hun/ter2@host:6379/0",
    "redis://:hun#ter2@host",
    "redis://:hun?ter2@host",
    "redis://gast:hunter2@[::1/0",
    "redis://gast:hunter2@ho\u2100st/0",
    "redis://gast:hunter2@host:99999999/0",
    "rediss://gast:hunter2@host/0?socket_timeout=soon",
    "redis://host/0?password=hunter2&socket_timeout=soon",
    "unix://gast:hunter2@/run/redis.sock?db=first",
    "memcached://gast:hunter2@host",
    "memcached://gast:hunter2@host:port",
    "memory://gast:hunter2@host",
    "sqlite://gast:hunter2@host/locks.db",
    "gast:hunter2@host",
    " redis://gast:hunter2@host:port/0",
    "nothing://gast:hunter2@host",
    "clumsy://gast:hunter2@host",
    "clumsy://gast:hun%74er2@host",
]


@BOTH
@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("url", LEAKY)
def test_no_error_shows_a_secret(make: Callable[[str], object], url: str) -> None:
    """Whatever is wrong with a URL, neither the error nor anything chained to it shows user or password."""
    if "redis" in url or "unix" in url:
        pytest.importorskip("redis")
    if "memcached" in url:
        pytest.importorskip("pymemcache")
    with pytest.raises(ValueError, match=r"\w") as caught:
        make(url)
    told = everything_told(caught.value)
    assert [piece for piece in ("hunter2", "ter2", "hun", "gast") if piece in told] == []


@pytest.mark.usefixtures("plugin")
def test_an_error_without_a_secret_is_told_as_it_is() -> None:
    """Only what would show a secret is withheld: any other error of a store reaches the caller whole."""
    with pytest.raises(ValueError, match="the host is down"):
        connect("clumsy://gast:123456@host")


@BOTH
def test_a_file_by_its_path(make: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes and a relative path, or four and an absolute one, mean the same file; the place is such a URL."""
    monkeypatch.chdir(tmp_path)
    one, two = make("sqlite:///odd%20%3F%25@#.db"), make(f"sqlite:///{tmp_path}/odd %3F%25@#.db?timeout=1.5")
    assert isinstance(one, SQLiteStore)
    assert isinstance(two, SQLiteStore)
    assert one.traits.place == two.traits.place
    one.put_if_version("k", b"v", 0, 60)
    assert [path.name for path in tmp_path.glob("*.db")] == ["odd ?%@#.db"]
    three = connect(one.traits.place)
    assert isinstance(three, SQLiteStore)
    assert three.get("k") == two.get("k") is not None
    assert (one._timeout, two._timeout) == (5.0, 1.5)
    for store in (one, two, three):
        store.close()


def test_a_memory() -> None:
    """Each ``memory://`` is a new memory, of the API that asks."""
    one, two, three = connect("memory://"), connect("MEMORY://"), connect_async("memory://")
    assert (type(one), type(two), type(three)) == (MemoryStore, MemoryStore, AsyncMemoryStore)
    assert len({store.traits.place for store in (one, two, three)}) == 3


@pytest.mark.parametrize(
    "url", ["redis://:secret@localhost:6390/3", "rediss://localhost", "unix:///run/redis.sock?db=2"]
)
def test_a_redis(url: str) -> None:
    """The three schemes of Redis make its stores, which never show the password."""
    stores = pytest.importorskip("caslock.stores.redis", exc_type=ModuleNotFoundError)
    one, two = connect(url), connect_async(url)
    assert (type(one), type(two)) == (stores.RedisStore, stores.AsyncRedisStore)
    assert "secret" not in repr((one, two, one.traits, two.traits))


def test_a_memcached() -> None:
    """Memcached has one store, which asyncio uses too."""
    stores = pytest.importorskip("caslock.stores.memcached", exc_type=ModuleNotFoundError)
    url = "memcached://localhost:11300?timeout=2"
    assert type(connect(url)) is type(connect_async(url)) is stores.MemcachedStore


@pytest.mark.usefixtures("plugin")
def test_a_store_of_somebody_else() -> None:
    """An entry point may name a class with `from_url` or a callable; asyncio prefers a store of its own group."""
    assert type(connect("shop://x")).__name__ == "Shop"
    assert getattr(connect("STALL://x?y"), "url", None) == "STALL://x?y"
    assert type(connect_async("shop://x")).__name__ == "AsyncShop"
    assert type(connect_async("stall://x")).__name__ == "Shop"
    assert type(connect_async("bazaar://x")).__name__ == "AsyncShop"
    with pytest.raises(ValueError, match="bazaar"):  # It is for asyncio only.
        connect("bazaar://x")


@pytest.mark.usefixtures("plugin")
def test_no_entry_point_replaces_our_own() -> None:
    """A scheme of caslock's own is never somebody else's."""
    pytest.importorskip("redis")
    assert type(connect("redis://localhost")).__name__ == "RedisStore"


@BOTH
@pytest.mark.usefixtures("plugin")
def test_an_unknown_scheme(make: Callable[[str], object]) -> None:
    """The error lists every scheme that is known, those of entry points too."""
    known = "memcached, memory, redis, rediss, shop, sqlite, stall, unix"
    with pytest.raises(ValueError, match="no store is known for redi://; there are") as caught:
        make("redi://localhost")
    assert not set(known.split(", ")) - set(str(caught.value).partition("there are ")[2].split(", "))


@BOTH
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("localhost:6379", "begins with its scheme"),
        ("", "begins with its scheme"),
        ("://x", "begins with its scheme"),
        ("memory://name", "no name"),
        ("sqlite://locks.db", "sqlite:///relative"),
        ("sqlite://", "sqlite:///relative"),
        ("sqlite:///", "MemoryStore"),
        ("sqlite:///:memory:", "MemoryStore"),
        ("sqlite:///x.db?timeout=soon", "number of seconds"),
        ("sqlite:///x.db?timeout=nan", "timeout must be"),
        ("sqlite:///x.db?timeout=1&mode=ro&cache=shared", "not cache, mode"),
    ],
)
def test_a_url_that_cannot_be_meant(make: Callable[[str], object], url: str, sentence: str) -> None:
    """A slip in a URL is a ValueError which says how it should look."""
    with pytest.raises(ValueError, match=sentence):
        make(url)


@BOTH
@pytest.mark.parametrize("url", [None, b"memory://", Path("locks.db")])
def test_what_is_no_text(make: Callable[[object], object], url: object) -> None:
    """Anything but a str is a TypeError that names its type."""
    with pytest.raises(TypeError, match=type(url).__name__):
        make(url)


SCRIPT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("redis", "pymemcache"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import caslock
for make in (caslock.connect, caslock.connect_async):
    make("memory://"), make("sqlite:///x.db")
    for scheme, extra in {"redis": "redis", "rediss": "redis", "unix": "redis", "memcached": "memcached"}.items():
        try:
            make(f"{scheme}://gast:hunter2@localhost")
        except ModuleNotFoundError as error:
            assert f"{scheme}:// needs" in str(error) and f"pip install 'caslock[{extra}]'" in str(error), error
            assert isinstance(error.__cause__, ImportError) and "hunter2" not in str(error)
        else:
            raise AssertionError(scheme)
"""


def test_a_missing_client_says_what_to_install() -> None:
    """Where the client of a scheme is not installed, the error is the sentence that tells how to install it."""
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, check=True, timeout=50)


def test_a_url_imports_no_other_store() -> None:
    """Making one store imports no client of another."""
    script = "import caslock, sys; caslock.connect('sqlite:///x.db'); print({'redis', 'pymemcache'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=50, capture_output=True)
    assert done.stdout.strip() == b"set()"
    assert caslock.connect is connect
