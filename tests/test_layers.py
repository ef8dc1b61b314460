"""The arrows between the modules of caslock only point down."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "caslock"

RULES = ("errors", "store", "record", "claim", "request", "core")
"""The rules of locking, from the ground up: all that the simulator drives."""

STATE = ("bodies", "checks", "hold", "turnstile", "lockstate", "multi")
LADDER = (
    *("clock", "process", "sockets", "interrupts", *RULES, *STATE, "keeper", "thread_world", "task_world"),
    *("blocking", "aio", "connect", "__init__", "testing", "cli"),
)
"""Every module and package, from the ground up: each may import what stands before it, with these exceptions."""

MAY_IMPORT = {own: set(LADDER[:rung]) for rung, own in enumerate(LADDER)}
MAY_IMPORT["stores"] = {"errors", "store", "process", "sockets"}  # not each other, but for the files of one store
MAY_IMPORT["task_world"] -= {"keeper", "thread_world"}
MAY_IMPORT["aio"] -= {"keeper", "blocking", "thread_world"}  # the two APIs are siblings
MAY_IMPORT["connect"] = {"errors", "store", "stores"}
MAY_IMPORT["testing"] |= {"stores", "testing"}
MAY_IMPORT["cli"] |= {"stores", "cli"}

MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def imports(source: str) -> set[str]:
    """Name all modules that `source` imports, at any depth, also for types only, as dotted absolute names."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            submodules = {f"caslock.{alias.name}" for alias in node.names if alias.name in MAY_IMPORT}
            found |= (submodules or {module}) if module == "caslock" else {module}
    return found


def layer(module: str) -> str:
    """Give the layer of a module of caslock: its first name below the package."""
    return [*module.split("."), "__init__"][1]


def test_every_import_is_seen() -> None:
    """The walk below sees imports in functions, for types only, and through the package."""
    source = """
import caslock
from caslock import core, Lock
if TYPE_CHECKING:
    from caslock.stores.redis import RedisStore
def f():
    import asyncio.tasks as t, caslock.record
    from . import x
"""
    seen = {".", "asyncio.tasks", "caslock", "caslock.core", "caslock.record", "caslock.stores.redis"}
    assert imports(source) == seen


@pytest.mark.parametrize("module", MODULES)
def test_arrows_only_point_down(module: str) -> None:
    """A module imports only what stands below it."""
    own = Path(module).parts[0].removesuffix(".py")
    assert own in MAY_IMPORT, f"{module}: give {own!r} its place in MAY_IMPORT"
    names = imports((PACKAGE / module).read_text())
    assert not [name for name in names if name.startswith(".")], f"{module}: no relative imports"
    family = "caslock." + ".".join(Path(module).with_suffix("").parts).partition("_")[0]  # redis_line is one of redis
    inside = {layer(name) for name in names if name.split(".")[0] == "caslock" and not _of(family, name)}
    assert inside <= MAY_IMPORT[own], f"{module} must not import {sorted(inside - MAY_IMPORT[own])}"


def _of(family: str, name: str) -> bool:
    """Tell whether a store's module is one of the same store's: ``redis.py`` or ``redis_*.py``."""
    return family.startswith("caslock.stores.") and re.fullmatch(rf"{re.escape(family)}(_\w+)?", name) is not None


@pytest.mark.parametrize("own", RULES)
def test_the_rules_know_no_threads_and_no_event_loop(own: str) -> None:
    """The rules are written once: they import neither threading nor asyncio, nor what hides them."""
    outside = {name.split(".")[0] for name in imports((PACKAGE / f"{own}.py").read_text())}
    assert not outside & {"_thread", "asyncio", "concurrent", "multiprocessing", "threading"}
