"""The law of this file: what can be had for one system call is not asked for with two."""

from __future__ import annotations

import _socket
import os
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def sender(connection: socket.socket) -> Callable[[bytes], None]:
    """Give the `sendall` of a socket with a timeout that does not ask the kernel first whether there is room.

    There is, where all that was sent before has been answered.  A socket that is more than the kernel's (of TLS, of
    green threads) keeps its own.
    """
    if os.name != "posix" or type(connection).send is not _socket.socket.send:
        return connection.sendall
    write = partial(os.write, connection.fileno())  # who has a timeout never blocks in it

    def send(packet: bytes) -> None:
        try:
            sent = write(packet)
        except BlockingIOError:
            sent = 0
        if sent < len(packet):
            connection.sendall(packet[sent:])

    return send
