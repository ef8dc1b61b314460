"""A stand-in for Docker's engine: the part of its HTTP API that the tests use; commands run as processes of this host.

It refuses what would fail in a real container: a path that is not mounted, and a loopback address of the host where the
container has a network of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

API: Final = "1.41"


@dataclass
class Contained:
    """A container."""

    config: dict[str, Any]
    log: Path
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False

    @property
    def command(self) -> list[str]:
        """What it runs."""
        return [*(self.config.get("Entrypoint") or ()), *(self.config.get("Cmd") or ())]

    @property
    def status(self) -> str:
        """In Docker's words."""
        if self.process is None:
            return "created"
        if self.process.poll() is not None:
            return "exited"
        return "paused" if self.paused else "running"

    def start(self) -> str:
        """Start it; gives why it can't be."""
        host = self.config["HostConfig"]
        mounted = [bind.split(":")[0] for bind in host.get("Binds") or ()]
        for word in self.command[1:]:
            if word.startswith("/") and not any(word.startswith(location) for location in mounted):
                return f"{word} is not mounted"
            if word == "127.0.0.1" and host.get("NetworkMode") != "host":
                return "127.0.0.1 is the container itself"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return ""

    def send(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        if self.process is not None:
            self.process.send_signal(number)
            if number is signal.SIGKILL:
                self.process.wait()
        if number == signal.SIGSTOP and self.process is not None:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)  # Docker answers when it is frozen


class Engine(ThreadingHTTPServer):
    """The engine, on a port of its own."""

    daemon_threads = True

    def __init__(self, folder: Path, images: Sequence[str]) -> None:
        """Serve with `images`; there is no network to get others from."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.images = folder, images
        self.containers: dict[str, Contained] = {}
        self.created: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """What ``DOCKER_HOST`` has to be."""
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    def create(self, config: dict[str, Any]) -> Contained:
        """Make a container."""
        made = Contained(config, self.folder / f"container-{len(self.created)}.log")
        self.created.append(config)
        self.containers[made.name] = made
        return made

    def remove(self, contained: Contained) -> None:
        """End a container, and forget it."""
        contained.send(signal.SIGKILL)
        del self.containers[contained.name]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer a question."""
        path, query = self._path()
        if path == "/_ping":
            self._answer(200, b"OK")
        elif path == "/version":
            self._answer(200, {"ApiVersion": API, "MinAPIVersion": "1.12"})
        elif path == "/info":
            self._answer(200, {"OSType": "linux", "SecurityOptions": ["name=seccomp,profile=default"]})
        elif found := re.fullmatch(r"/images/(.+)/json", path):
            known = found[1] in self.server.images
            self._answer(200, {"Id": found[1]}) if known else self._refuse(404, f"No such image: {found[1]}")
        elif path == "/containers/json":
            labels = json.loads(query.get("filters", "{}")).get("label", [])
            self._answer(200, [
                {"Id": each.name}
                for each in self.server.containers.values()
                if all(label in (each.config.get("Labels") or {}) for label in labels)
            ])  # fmt: skip
        elif contained := self._contained(path, "json"):
            state = {"Status": contained.status, "Running": contained.status == "running"}
            config = {"Image": contained.config["Image"], "Labels": contained.config.get("Labels"), "Tty": False}
            self._answer(200, {"Id": contained.name, "Name": "/it", "State": state, "Config": config})
        elif contained := self._contained(path, "logs"):
            said = contained.log.read_bytes() if contained.log.exists() else b""
            self._answer(200, struct.pack(">BxxxL", 1, len(said)) + said)

    def do_POST(self) -> None:
        """Do something."""
        path, query = self._path()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/images/create":
            self._refuse(404, f"pull access denied for {query['fromImage']}")
        elif path == "/containers/create":
            config = json.loads(body)
            if config["Image"] in self.server.images:
                self._answer(201, {"Id": self.server.create(config).name, "Warnings": []})
            else:
                self._refuse(404, f"No such image: {config['Image']}")
        elif contained := self._contained(path, "start"):
            why = contained.start()
            self._refuse(500, why) if why else self._answer(204)
        elif contained := self._contained(path, "kill"):
            contained.send(signal.SIGKILL)
            self._answer(204)
        elif contained := self._contained(path, "(?:un)?pause"):
            contained.paused = not path.endswith("/unpause")
            contained.send(signal.SIGSTOP if contained.paused else signal.SIGCONT)
            self._answer(204)

    def do_DELETE(self) -> None:
        """Remove a container."""
        if contained := self._contained(self._path()[0], ""):
            self.server.remove(contained)
            self._answer(204)

    def _path(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        queries = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return unquote(re.sub(r"^/v1\.\d+(?=/)", "", parts.path)), queries

    def _contained(self, path: str, verb: str) -> Contained | None:
        found = re.fullmatch(rf"/containers/(\w+){verb and '/'}{verb}", path)
        return self.server.containers.get(found[1]) if found else None

    def _refuse(self, status: int, why: str) -> None:
        self._answer(status, {"message": why})

    def _answer(self, status: int, content: object = b"") -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(content, bytes) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def engine(folder: Path, *images: str) -> Iterator[Engine]:
    """Run an engine that has `images`; what it still runs at the end is killed."""
    with Engine(folder, images) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield serving
        finally:
            serving.shutdown()
            thread.join()
            for contained in [*serving.containers.values()]:
                serving.remove(contained)
