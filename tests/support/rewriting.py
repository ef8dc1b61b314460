"""A proxy that rewrites what a server replies, which `caslock.testing.proxy.FaultProxy` does not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from tests.support.servers import HOST, Server


class RewritingProxy:
    """A TCP proxy of a server, which may be swapped for another, and whose replies may be rewritten."""

    def __init__(self, target: Server) -> None:
        self.target = target
        self.rewrite: Callable[[bytes], bytes] = _unchanged
        self._listener = socket.create_server((HOST, 0))
        self.host = HOST
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection((self.target.host, self.target.port))
                for sides in ((near, far, _unchanged), (far, near, self._rewritten)):
                    threading.Thread(target=_pump, args=sides, daemon=True).start()

    def _rewritten(self, reply: bytes) -> bytes:
        return self.rewrite(reply)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _unchanged(data: bytes) -> bytes:
    return data


def _pump(source: socket.socket, sink: socket.socket, passes: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError), source, sink:
        while data := source.recv(1 << 16):
            sink.sendall(passes(data))
        for side in (source, sink):
            side.shutdown(socket.SHUT_RDWR)
