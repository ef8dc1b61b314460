"""What `import caslock` brings, and what it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import caslock

ROOT = Path(__file__).parents[2]

EXTRAS = (
    "redis",
    "hiredis",
    "pymemcache",
    "sqlalchemy",
    "psycopg",
    "pymysql",
    "asyncmy",
    "kazoo",
    "h11",
    "hazelcast",
    "boto3",
    "botocore",
    "aiobotocore",
    "testcontainers",
    "pytest",
    "hypothesis",
    "click",
    "rich",
    "platformdirs",
    "prometheus_client",
    "opentelemetry",
)

SCRIPT = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[1])
import caslock
for name in caslock.__all__:
    getattr(caslock, name)
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {{*{EXTRAS!r}}}))
"""


def test_import_needs_no_extra() -> None:
    """Caslock can be imported, and every public name used, where no extra is installed."""
    python = [sys.executable, "-I", "-W", "error", "-c", SCRIPT, str(ROOT)]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


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
    python = [sys.executable, "-W", "error", "-c", WINDOWS, str(tmp_path / "locks.db")]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


BLOCKING = """
import sys
sys.path.insert(0, sys.argv[1])
import caslock
lock = caslock.Lock(caslock.connect("memory://"), "k")
with lock, lock, lock.acquire(), caslock.MultiLock([lock]):
    lock.acquire().release()
print(*{"asyncio", "caslock.local.quorum"} & {*sys.modules})
"""


def test_a_blocking_lock_imports_neither_asyncio_nor_a_quorum() -> None:
    """Who uses no others does not pay for them, also where asyncio's tasks would matter: re-entering."""
    python = [sys.executable, "-I", "-W", "error", "-c", BLOCKING, str(ROOT)]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


WAITING = """
import sys
sys.path.insert(0, sys.argv[1])
import caslock
with caslock.connect(sys.argv[2]) as store, caslock.connect(sys.argv[2]) as other:
    with caslock.Lock(store, "k"):
        assert caslock.Lock(other, "k").acquire(timeout=0.05) is None
print("tenacity" in sys.modules)
"""


def test_a_wait_imports_no_tenacity(tmp_path: Path) -> None:
    """Tenacity is imported at the first request without an answer, not in the middle of somebody's wait."""
    python = [sys.executable, "-I", "-W", "error", "-c", WAITING, str(ROOT), f"sqlite:///{tmp_path}/locks.db"]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "False", "")


def test_public_names_are_sorted_and_exist() -> None:
    """`__all__` is a table of contents: sorted, without repetition, and each name is there."""
    assert list(caslock.__all__) == sorted(set(caslock.__all__))
    assert [name for name in caslock.__all__ if not hasattr(caslock, name)] == []


LISTING = """
import sys
sys.path.insert(0, sys.argv[1])
import caslock
print(*sorted({*caslock.__all__, "__version__"} - {*dir(caslock)}), "asyncio" in sys.modules)
"""


def test_dir_shows_all_public_names() -> None:
    """`dir(caslock)`, and so completion, has the names of asyncio before one of them is used, and imports nothing."""
    python = [sys.executable, "-I", "-W", "error", "-c", LISTING, str(ROOT)]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "False", "")


def test_the_version_is_that_of_the_distribution() -> None:
    """`caslock.__version__` and `caslock --version` say what pyproject.toml does."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert caslock.__version__ == version
    for module in ("caslock", "caslock.cli"):
        python = [sys.executable, "-m", module, "--version"]
        done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"caslock {version}\n", "")


def test_without_click_the_command_line_says_what_to_install(tmp_path: Path) -> None:
    """Without the extra `cli`, `caslock` is there all the same, and names the extra in one line."""
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(name='click')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    python = [sys.executable, "-m", "caslock", "list"]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "caslock: the command line needs click: pip install 'caslock[cli]'\n"


def test_seconds_that_are_no_number_are_refused_in_words() -> None:
    """`caslock verify --seconds x` names no function of ours."""
    python = [sys.executable, "-m", "caslock.cli", "verify", "memory://", "--seconds", "x"]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Invalid value for '--seconds': 'x' is not a valid" in done.stderr
