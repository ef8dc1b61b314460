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

# Has Linux kill the server when the thread that started it ends, then becomes the server.
_TIED: Final = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


class Kind(NamedTuple):
    """What there is to know about a kind of server."""

    binaries: tuple[str, ...]  # the first that is on the PATH is taken
    options: tuple[str, ...]  # with {port} and {folder}
    url: str
    hello: bytes  # what is sent to find out whether it is up
    ready: bytes  # how its answer begins then


KINDS: Final = {
    "redis": Kind(
        ("redis-server", "valkey-server"),
        ("--bind", HOST, "--port", "{port}", "--dir", "{folder}", "--save", "", "--appendonly", "no"),
        f"redis://{HOST}:{{port}}/0",
        b"PING\r\n",
        b"+PONG",
    ),
    "memcached": Kind(
        ("memcached",),
        # As root it wants to be told which user to be.  Small, so that it is soon full; -M: then it evicts nothing.
        ("-l", HOST, "-p", "{port}", "-U", "0", "-m", "4", "-M", *(("-u", "root") if os.geteuid() == 0 else ())),
        f"memcached://{HOST}:{{port}}",
        b"version\r\n",
        b"VERSION",
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
        tied = (sys.executable, "-I", "-S", "-c", _TIED) if sys.platform == "linux" else ()
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
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if time.monotonic() > end or self._child.poll() is not None:
                self._kill()
                said = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"{self.url} does not answer: {said[-1000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), timeout=1.0) as connection:
            connection.sendall(self._kind.hello)
            return connection.recv(100).startswith(self._kind.ready)
        return False

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
