"""The arrows between the modules of caslock only point down."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "caslock"

PROTOCOL = (
    *("lease", "shares", "record", "sightings", "writes", "life", "exchange", "contention", "attempt", "runtime"),
    *("limits", "hand_over", "shared_attempt", "shared_transfer", "clean_up", "withdraw", "observation"),
    *("acquire", "renew", "transfer", "release", "batch", "quorum"),
)
LOCAL = (
    *("clock", "settings", "several", "with_blocks", "hold", "holds", "reports", "linger", "refusals", "queue"),
    *("shared_queue", "shared", "stamps", "tickets"),
    *("lock_state", "semaphore", "read_write", "lane", "vote", "quorum", "multi", "lock", "changes", "candidates"),
    *("finishing", "schedule", "workers", "thread_renewer", "threads", "task_renewer", "in_threads", "tasks"),
)
GROUND = (
    *("errors", "failures", "store", "guards", "closing", "verbs", "fork", "connections", "options", "links"),
    *("loop_end", "observer"),
)
LADDER = (
    *GROUND,
    *(f"protocol.{name}" for name in PROTOCOL),
    *(f"local.{name}" for name in LOCAL),
    *("protocol", "local", "blocking", "aio", "election", "async_election", "keys", "key_template", "decorator"),
    *("connect", "fencing", "__init__", "observers", "testing", "verify", "cli", "__main__"),
)
"""Every module and package, from the ground up: each may import what comes before it, with these exceptions."""

MAY_IMPORT = {own: set(LADDER[:rung]) for rung, own in enumerate(LADDER)}
MAY_IMPORT["stores"] = set()  # the package itself; its stores:
OF_A_STORE = {"errors", "store", "guards", "closing", "fork", "options"}
OF_A_CLIENT = OF_A_STORE | {"connections", "failures", "links"}
STORES = {"memory": OF_A_STORE, "sqlite": OF_A_STORE, "memcached": OF_A_CLIENT, "redis": OF_A_CLIENT | {"loop_end"}}
STORES["sql"] = STORES["dynamodb"] = STORES["redis"] | {"verbs"}
STORES["hazelcast"] = STORES["etcd"] = STORES["nats"] = STORES["sql"]
STORES["zookeeper"] = OF_A_CLIENT
STORES["tair"] = OF_A_CLIENT | {"stores"}  # the connections of Redis
"""What each store may import, besides its own files: the contract, and what is shared by stores of its sort."""
for own in PROTOCOL:
    MAY_IMPORT[f"protocol.{own}"] -= set(GROUND) - {"errors", "store"}
for own in ("task_renewer", "tasks"):  # threads and tasks are siblings, and so are the two APIs
    MAY_IMPORT[f"local.{own}"] -= {"local.thread_renewer", "local.threads"}
MAY_IMPORT["aio"] -= {"blocking", "local.thread_renewer", "local.threads"}
MAY_IMPORT["errors"] = {"protocol.record"}  # for types only: the errors name it
MAY_IMPORT["fencing"] = {"errors", "fencing"}  # it guards resources, and knows no lock
MAY_IMPORT["connect"] = {"errors", "options", "store", "stores"}
for own in ("testing", "verify", "cli", "__main__"):
    MAY_IMPORT[own] |= {"stores", own}

MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def imports(source: str, *, types: bool = True) -> set[str]:
    """Name all modules that `source` imports, at any depth, as dotted absolute names; `types`: also for types only."""
    found = set[str]()
    tree = ast.parse(source)
    if not types:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            submodules = {
                f"{module}.{alias.name}" for alias in node.names if layer(f"{module}.{alias.name}") in MAY_IMPORT
            }
            packages = {"caslock", "caslock.protocol", "caslock.local", "caslock.process", "caslock.stores.shared"}
            found |= (submodules or {module}) if module in packages else {module}
    return found


def layer(module: str) -> str:
    """Return the layer of a module of caslock: its first name below the package, or the first two in split packages."""
    inner = module.removeprefix("caslock").removeprefix(".process").removeprefix(".stores.shared")
    names = [*inner.split(".")[1:], "__init__"]
    split = names[0] in {"protocol", "local"} and names[1] != "__init__"
    return ".".join(names[:2]) if split else names[0]


def test_every_import_is_seen() -> None:
    """The walk above sees imports in functions, for types only, and through the package."""
    source = """
import caslock
from caslock import connect, Lock
from caslock.protocol import acquire
if TYPE_CHECKING:
    from caslock.stores.redis import RedisStore
def f():
    import asyncio.tasks as t, caslock.protocol.record
    from . import x
"""
    seen = {".", "asyncio.tasks", "caslock", "caslock.connect", "caslock.protocol.acquire", "caslock.protocol.record"}
    assert imports(source) == {*seen, "caslock.stores.redis"}


@pytest.mark.parametrize("module", MODULES)
def test_arrows_only_point_down(module: str) -> None:
    """A module imports only modules below it, and nothing that is not shipped."""
    own = layer("caslock." + ".".join(Path(module).with_suffix("").parts))
    store = _store_of(module)
    assert own in MAY_IMPORT, f"{module}: give {own!r} its place in MAY_IMPORT"
    assert store in {"__init__", *STORES}, f"{module}: give {store!r} its place in STORES"
    allowed = STORES.get(store, MAY_IMPORT[own])
    names = imports((PACKAGE / module).read_text())
    assert not [name for name in names if name.startswith(".")], f"{module}: no relative imports"
    assert not {name.split(".")[0] for name in names} & {"tests", "benchmarks", "examples"}
    inside = {layer(name) for name in names if name.split(".")[0] == "caslock" and not _same_store(module, name)}
    running = {layer(name) for name in imports((PACKAGE / module).read_text(), types=False)}
    package = own.partition(".")[0]  # the modules of one package may name each other's types
    inside -= {name for name in inside - running if "." in own and name.partition(".")[0] == package}
    assert inside <= allowed, f"{module} must not import {sorted(inside - allowed)}"


def _store_of(module: str) -> str:
    """Name the store that a module is, or is a file of; of other modules, "__init__"."""
    own = Path(module).with_suffix("").parts
    return own[1] if own[0] == "stores" and own[1] != "shared" else "__init__"


def _same_store(module: str, name: str) -> bool:
    """Return whether a module of a store imports another file of the same store."""
    return name.startswith(f"caslock.stores.{_store_of(module)}.")


@pytest.mark.parametrize("own", PROTOCOL)
def test_the_protocol_knows_no_threads_and_no_event_loop(own: str) -> None:
    """The rules are written once: they import neither threading nor asyncio, nor what hides them."""
    outside = {name.split(".")[0] for name in imports((PACKAGE / "protocol" / f"{own}.py").read_text())}
    assert not outside & {"_thread", "asyncio", "concurrent", "multiprocessing", "threading"}
