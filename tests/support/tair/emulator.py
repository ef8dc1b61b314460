"""An emulator of a server with TairString, for tests; it is not the module, and shows nothing about the module.

It starts a Redis and stands before it.  What clients send passes unchanged, but for scripts, before which it puts
`emulator.lua`, and EXSET, EXGET and EXCAS, which become such scripts.  So time, expiry, memory and errors are those
of a real server.

    python tests/support/tair/emulator.py PORT [--excas-without-px] [options of redis-server]
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
SOCKET: Final = "redis.sock"  # in the current folder
LIMIT: Final = 2**24  # bytes of a line or an argument

WITHOUT_PX: Final = "--excas-without-px"
"""Has EXCAS refuse PX, as the documentation of the cloud service reads.  (How such a server answers is a guess.)"""

# Becomes the parent of Redis, and kills it when its own parent has ended, even by kill -9: then the pipe does.
TIED: Final = """
import subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (sys.stdin.read(), server.kill()), daemon=True).start()
server.wait()
"""

COMMANDS: Final = (b"EXSET", b"EXGET", b"EXCAS")
DIRECT: Final = b"return redis.pcall(unpack(ARGV))"


class Emulator:
    def __init__(self, *, without_px: bool) -> None:
        lua = Path(__file__).with_suffix(".lua").read_bytes()
        self.before = b"local EXCAS_WITHOUT_PX = %b\n%b\n" % (b"true" if without_px else b"false", lua)
        self.digests: dict[bytes, bytes] = {}  # of a script, as a client knows it -> as Redis does

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client, on a connection of its own to Redis."""
        from_redis, to_redis = await asyncio.open_unix_connection(SOCKET, limit=LIMIT)
        replies = asyncio.create_task(self._copy(from_redis, writer))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while command := await self._read(reader):
                to_redis.write(command)
                await to_redis.drain()
        to_redis.close()
        replies.cancel()
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Read one command, and give what Redis is to be sent; nothing at the end."""
        line = await reader.readline()
        if not line.startswith(b"*"):  # as people type it, or the end
            return line
        arguments = []
        for _ in range(int(line[1:])):
            length = int((await reader.readline())[1:])
            arguments.append((await reader.readexactly(length + 2))[:-2])
        arguments = self._translated(arguments)
        packed = [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
        return b"*%d\r\n%b" % (len(packed), b"".join(packed))

    def _translated(self, arguments: list[bytes]) -> list[bytes]:
        name = arguments[0].upper()
        if name in COMMANDS:
            return [b"EVAL", self.before + DIRECT, b"%d" % len(arguments[1:2]), *arguments[1:2], *arguments]
        if name == b"EVAL":
            script = self.before + arguments[1]
            self.digests[_digest(arguments[1])] = _digest(script)
            return [b"EVAL", script, *arguments[2:]]
        if name == b"EVALSHA":
            return [b"EVALSHA", self.digests.get(arguments[1], arguments[1]), *arguments[2:]]
        return arguments


def _digest(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


def _start(port: int, options: list[str]) -> subprocess.Popen[bytes]:
    """Start Redis on a socket in the current folder, and wait until it can be connected to."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server") or "redis-server"
    command = [binary, "--port", "0", "--unixsocket", SOCKET, "--save", "", "--appendonly", "no"]
    command += ["--cluster-announce-port", str(port), *options]  # where clients are to go, if it is a cluster
    Path(SOCKET).unlink(missing_ok=True)
    server = subprocess.Popen([sys.executable, "-c", TIED, *command], stdin=subprocess.PIPE)
    with socket.socket(socket.AF_UNIX) as knocking:
        while knocking.connect_ex(SOCKET) and server.poll() is None:
            time.sleep(0.01)
    return server


async def main(emulator: Emulator, listener: socket.socket, server: subprocess.Popen[bytes]) -> None:
    async with await asyncio.start_server(emulator.serve, sock=listener, limit=LIMIT):
        while server.poll() is None:  # noqa: ASYNC110 - nothing else happens when it ends
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    given = sys.argv[2:]
    listening = socket.create_server((HOST, int(sys.argv[1])))
    redis = _start(int(sys.argv[1]), [option for option in given if option != WITHOUT_PX])
    asyncio.run(main(Emulator(without_px=WITHOUT_PX in given), listening, redis))
