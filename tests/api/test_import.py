"""What `import caslock` brings, and what it does not need."""

from __future__ import annotations

import tomllib
from pathlib import Path

import caslock
from tests.support.command_line import ROOT, python

EXTRAS = (
    *("redis", "hiredis", "pymemcache", "sqlalchemy", "psycopg", "pymysql", "asyncmy", "kazoo", "h11", "hazelcast"),
    *("boto3", "botocore", "aiobotocore", "testcontainers", "pytest", "hypothesis", "click", "rich", "platformdirs"),
    *("prometheus_client", "opentelemetry"),
)

SCRIPT = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # so that none of them can be imported
import caslock
for name in caslock.__all__:
    getattr(caslock, name)
print(*(name for name in sys.modules if name.startswith(("caslock.cli", "caslock.testing"))))
"""


def test_import_needs_no_extra() -> None:
    """Every public name can be used where no extra is installed; it brings neither command line nor proof kit."""
    assert python("-W", "error", "-c", SCRIPT) == (0, "\n", "")


WINDOWS = """
import os, select, signal, sys, time
for module, names in {
    os: ("fork", "register_at_fork", "getuid", "geteuid", "getppid"),
    time: ("clock_gettime", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC"),
    signal: ("SIGHUP", "SIGKILL", "SIGALRM", "setitimer"),
    select: ("poll", "epoll"),
}.items():
    for name in names:
        module.__dict__.pop(name, None)

import asyncio
import caslock
import caslock.aio, caslock.stores.memory, caslock.stores.sqlite, caslock.testing
for store in (caslock.connect("memory://"), caslock.connect("sqlite:///" + sys.argv[1])):
    with caslock.Lock(store, "key", ttl=5, timeout=1) as hold:
        assert hold.fence
    async def main():
        async with caslock.AsyncLock(store, "key", ttl=5, timeout=1) as hold:
            assert hold.fence
    asyncio.run(main())
    with caslock.MultiLock(store, ["a", "b"], timeout=1) as holds:
        assert len(holds) == 2
print("done")
"""


def test_import_needs_no_fork(tmp_path: Path) -> None:
    """Where Python has no fork and none of what else is missing on Windows, caslock can be imported and used."""
    assert python("-W", "error", "-c", WINDOWS, str(tmp_path / "locks.db")) == (0, "done\n", "")


BLOCKING = """
import sys
import caslock
lock = caslock.Lock(caslock.connect("memory://"), "k")
with lock, lock, lock.acquire(), caslock.MultiLock([lock]):
    lock.acquire().release()
caslock.Election  # the blocking one
print(*{*caslock.__all__, "__version__"} - {*dir(caslock)})
print(*{"asyncio", "caslock.local.quorum"} & {*sys.modules})
"""


def test_neither_a_blocking_lock_nor_dir_imports_asyncio_or_a_quorum() -> None:
    """Who uses no others does not pay for them; but `dir(caslock)`, and so completion, has all public names."""
    assert python("-W", "error", "-c", BLOCKING) == (0, "\n\n", "")


WAITING = """
import sys
import caslock
with caslock.connect(sys.argv[1]) as store, caslock.connect(sys.argv[1]) as other:
    with caslock.Lock(store, "k"):
        assert caslock.Lock(other, "k").acquire(timeout=0.05) is None
print(*{"tenacity", "redis", "pymemcache"} & {*sys.modules})
"""


def test_a_wait_imports_neither_tenacity_nor_another_store(tmp_path: Path) -> None:
    """Tenacity is imported at the first request without an answer, not in the middle of somebody's wait."""
    assert python("-W", "error", "-c", WAITING, f"sqlite:///{tmp_path}/locks.db") == (0, "\n", "")


def test_the_version_is_that_of_the_distribution() -> None:
    """`caslock.__version__` and `caslock --version` say what pyproject.toml does."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert caslock.__version__ == version
    assert python("-m", "caslock", "--version") == (0, f"caslock {version}\n", "")


def test_without_click_the_command_line_says_what_to_install(tmp_path: Path) -> None:
    """Without the extra `cli`, `caslock` is there all the same, and names the extra in one line."""
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(name='click')")
    told = "caslock: the command line needs click: pip install 'caslock[cli]'\n"
    assert python("-m", "caslock", "list", PYTHONPATH=f"{tmp_path}:{ROOT}") == (2, "", told)
