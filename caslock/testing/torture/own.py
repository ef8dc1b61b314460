"""The law of this file: a server of our own listens on the loopback address only, keeps nothing, and ends with the run.

It ends with the thread that has started it, even by kill -9 (on Linux): start it in the main thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST: Final = "127.0.0.1"

PATIENCE: Final = 20.0
"""Seconds that a server may take until it answers."""

# Has Linux kill the server when the thread that started it ends, unless it has ended already, then becomes the server.
_TIED: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Kind(NamedTuple):
    """What there is to know about a kind of server."""

    binaries: tuple[str, ...]  # the first that is on the PATH is taken
    options: tuple[str, ...]  # with {port} and {folder}
    url: str
    hello: bytes  # what is sent to find out whether it is up
    ready: bytes  # what its answer has in it then, its pid for %d


KINDS: Final = {
    "redis": Kind(
        ("redis-server", "valkey-server"),
        ("--bind", HOST, "--port", "{port}", "--dir", "{folder}", "--save", "", "--appendonly", "no"),
        f"redis://{HOST}:{{port}}/0",
        b"INFO server\r\n",
        b"process_id:%d\r\n",
    ),
    "memcached": Kind(
        ("memcached",),
        # As root it wants to be told which user to be.  Small, so that it is soon full; -M: then it evicts nothing.
        ("-l", HOST, "-p", "{port}", "-U", "0", "-m", "4", "-M", *(("-u", "root") if os.geteuid() == 0 else ())),
        f"memcached://{HOST}:{{port}}",
        b"stats\r\n",
        b"STAT pid %d\r\n",
    ),
}

OWN: Final = ("sqlite", *KINDS)
"""The stores that a run can make for itself."""


class Server:
    """One server, as an `OwnServer`."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        """Prepare it, to run in `folder`; raises FileNotFoundError where it is not installed."""
        binary = next(filter(None, map(shutil.which, kind.binaries)), None)
        if binary is None:
            raise FileNotFoundError(f"there is no {' or '.join(kind.binaries)} on the PATH: install one, or name a URL")
        port = _free_port()
        self.url = kind.url.format(port=port)
        tied = (sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())) if sys.platform == "linux" else ()
        self._command = [*tied, binary, *(option.format(port=port, folder=folder) for option in kind.options)]
        self._kind, self._port, self._folder = kind, port, folder
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it."""
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""
        self._kill()

    def pause(self) -> None:
        """See `OwnServer.pause`."""
        if self._child:
            self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """See `OwnServer.resume`."""
        if self._child:
            self._child.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """See `OwnServer.restart`."""
        self._kill()
        self._start()

    def _start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._child = subprocess.Popen(  # noqa: S603 - found on the PATH, with arguments of our own
                self._command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._wait(self._child)
        except BaseException:  # an interrupt among them
            self._kill()
            raise

    def _wait(self, child: subprocess.Popen[bytes]) -> None:
        """Return when our own child answers; raises RuntimeError if it ends, or somebody else has its port."""
        end = time.monotonic() + PATIENCE
        while not self._answers(child.pid):
            if time.monotonic() > end or child.poll() is not None:
                said = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"{self.url} does not answer: {said[-1000:]}")
            time.sleep(0.01)

    def _answers(self, pid: int) -> bool:
        """Whether it is our own child who answers: somebody else may have taken the port."""
        ready, said = self._kind.ready % pid, b""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), timeout=1.0) as connection:
            connection.sendall(self._kind.hello)
            while ready not in said and (more := connection.recv(4096)):
                said += more
        return ready in said

    def _kill(self) -> None:
        if self._child:
            self._child.kill()
            self._child.wait()


@contextlib.contextmanager
def own_store(name: str) -> Iterator[tuple[str, Server | None]]:
    """Make the store `name` of `OWN` in a temporary folder: its URL, and its server where it has one."""
    with tempfile.TemporaryDirectory(prefix="caslock-own-") as folder:
        if name not in KINDS:
            yield f"sqlite:///{folder}/locks.db", None
            return
        with Server(KINDS[name], Path(folder)) as server:
            yield server.url, server


def _free_port() -> int:
    """Find a free port below those that outgoing connections get: while the server is down, one could take it."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return port
    raise RuntimeError("no free port")
