"""The servers and the folder where the locks are; no key is used twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.servers import MEMCACHED, REDIS, Kind, Process, Server, shared

if TYPE_CHECKING:
    from collections.abc import Iterator

REDIS_PLACE: Final = "Redis"
MEMCACHED_PLACE: Final = "memcached"
FILE_PLACE: Final = "file"
MEMORY_PLACE: Final = "memory"

PACKAGES: Final = (
    "caslock", "tenacity", "redis", "hiredis", "pymemcache", "pylibmc", "python-redis-lock", "redlock-py", "pottery",
    "sherlock", "filelock", "diskcache", "portalocker",
)  # fmt: skip


@dataclass(frozen=True)
class Places:
    """The servers and the folder of one run, and why a server is missing."""

    folder: Path
    servers: dict[str, Server]
    missing: dict[str, str] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def address(self, place: str) -> tuple[str, int]:
        """Give host and port."""
        server = self.servers[place]
        return server.host, server.port

    def url(self, place: str) -> str:
        """Give the URL for `caslock.connect`."""
        if place == FILE_PLACE:
            return f"sqlite:///{self.folder}/caslock.db"
        return "memory://" if place == MEMORY_PLACE else self.servers[place].url

    def key(self) -> str:
        """Give a key that no other measurement has used: a server that is not ours is never flushed."""
        return f"bench-{os.getpid()}-{next(self._numbers)}"

    @contextlib.contextmanager
    def pinned(self) -> Iterator[int | None]:
        """Keep the servers on one core meanwhile, and give its number for `pin`."""
        if not hasattr(os, "sched_setaffinity"):
            yield None
            return
        cores = os.sched_getaffinity(0)
        core = max(cores)
        self._bind({core})
        try:
            yield core
        finally:
            self._bind(cores)

    def _bind(self, cores: set[int]) -> None:
        for server in self.servers.values():
            child = server.body.child if isinstance(server.body, Process) else None
            if child is not None:
                for thread in Path(f"/proc/{child.pid}/task").iterdir():
                    os.sched_setaffinity(int(thread.name), cores)


def pin(core: int | None) -> None:
    """Keep this process on one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def opened() -> Iterator[Places]:
    """Start the servers, and remove them and the folder afterwards."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="caslock-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        servers: dict[str, Server] = {}
        missing: dict[str, str] = {}
        for place, kind in ((REDIS_PLACE, REDIS), (MEMCACHED_PLACE, MEMCACHED)):
            try:
                servers[place] = stack.enter_context(_server(kind, folder / kind.name))
            except pytest.skip.Exception as error:
                missing[place] = str(error)
        yield Places(folder, servers, missing)


@contextlib.contextmanager
def _server(kind: Kind, folder: Path) -> Iterator[Server]:
    folder.mkdir()
    with shared(kind, folder) as server:
        yield server


def circumstances(places: Places) -> dict[str, str]:
    """Give the versions, the processors and the file system that the figures depend on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = {
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}, {cores} cores",
        "files on": _file_system(places.folder),
    }
    for name in PACKAGES:
        try:
            told[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            told[name] = "not installed"
    return told


def digest(package: Path) -> str:
    """Give a digest of the package's sources, to tell to which state of them the figures belong."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _file_system(folder: Path) -> str:
    with contextlib.suppress(OSError):
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
        return max((len(point), kind) for point, kind in mounts if folder.is_relative_to(point))[1]
    return "unknown"
