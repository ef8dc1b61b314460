"""One process of clients.  It ends with its parent or with its time, whatever hangs in it."""

from __future__ import annotations

import asyncio
import base64
import encodings.idna  # noqa: F401 - imported early: see below
import gc
import json
import os
import random
import re
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import tenacity  # noqa: F401 - imported early: see below

# Imported before there are threads, so that no first use imports them.  An interrupt just as a thread takes CPython's
# import lock leaves it locked, and a child that is forked during an import waits for that import for ever.
import caslock.local.read_write  # noqa: F401 - see above
from caslock.local import clock
from caslock.testing.proxy import FAULTS, Kind, Passage, chance
from caslock.verify import locations
from caslock.verify.apis import Api, Asyncio, Blocking
from caslock.verify.client import Client
from caslock.verify.faults import FaultInjector
from caslock.verify.history import History, What
from caslock.verify.plan import PREFIX, Plan
from caslock.verify.recorder import Shared, WallClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from caslock.store import AsyncStore, Store

DEPTH: Final = 20
"""Calls that are told of a thread or a task that hangs."""

_KEY: Final = re.compile(re.escape(PREFIX.encode()) + rb"\w+:[a-z]*\d+")
_HOLDS: Final = re.compile(rb'"holds":\[([^\]]*)\]')
_SHARES: Final = re.compile(rb'\["([0-9a-f]{16}\.\d+)",')
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{16,}={0,2}")
_HEXADECIMAL: Final = re.compile(rb"X'([0-9a-f]+)'")


def odds(times: float) -> dict[Kind, float]:
    """Tell how likely the faults are that usually are `times` times less so."""
    return {kind: min(0.1, times * each) for kind, each in FAULTS.items()}


def fault_writer(history: History, who: str = "", what: What = "fault") -> Callable[[bytes, Passage], None]:
    """Make what writes down the faults of requests (of worker `who`), with the key and the holds in the request.

    `what` may be "arrives": when they were sent on.
    """

    def write(request: bytes, passage: Passage) -> None:
        text = _plain(request)
        found = dict.fromkeys(_HOLDS.findall(text) + _SHARES.findall(text))
        key, holds = _KEY.search(text), b",".join(found)
        history.note(
            what, who, key[0].decode() if key else "", "", " ".join(re.findall(r"[^\",]+", holds.decode())),
            note=passage.kind, until=passage.seconds,
        )  # fmt: skip

    return write


def _plain(request: bytes) -> bytes:
    """Add to a request what it has in base64 (etcd, DynamoDB), hexadecimal or escaped (MySQL), and %3A (ZooKeeper)."""
    parts = [request, *(bytes.fromhex(word.decode()) for word in _HEXADECIMAL.findall(request))]
    for word in _BASE64.findall(request):
        with suppress(ValueError):
            parts.append(base64.b64decode(word, validate=True))
    return unquote_to_bytes(b"\n".join(parts).replace(b"\\", b""))


class Place(NamedTuple):
    """What a worker is told as it starts, as JSON: where it works."""

    plan: str
    url: str
    name: str
    folder: str
    proxied: bool
    """Whether its requests go through the proxy: else it injects the faults itself."""


class Orders(NamedTuple):
    """What it is told when it is to begin, as JSON."""

    kind: str
    """"threads" or "tasks"."""
    until: float


class Worker:
    """The clients of one process."""

    def __init__(self, place: Place) -> None:
        """Open the store, past all faults: what that imports is there when the time begins."""
        self._plan, self._place = Plan.from_json(place.plan), place
        self._direct = locations.open_direct(self._plan)
        self._living = dict[str, int]()
        """The thread of each client that has not come to its end."""
        self._tasks = dict[str, asyncio.Task[Any]]()
        """The task of each client that has one."""

    def work(self, orders: Orders) -> None:
        """Run the clients to their end."""
        plan, place = self._plan, self._place
        random.seed(f"{plan.seed} {place.name}")  # the jitter of waiting
        folder = Path(place.folder)
        history = History(folder / f"{place.name}.history")
        injects = not place.proxied and plan.faults
        decide = chance(f"{plan.seed} {place.name}", plan.longest_delay, odds(plan.faults)) if injects else None
        injector = FaultInjector(decide, fault_writer(history, place.name))
        shared = Shared(history, injector, self._direct, folder, orders.until, WallClock())
        gc.freeze()  # before any hold is made: a frozen one that everybody has forgotten would be renewed for ever
        threading.Thread(target=self._count_requests, args=(shared,), daemon=True).start()
        threading.Thread(target=self._expire, args=(shared,), daemon=True).start()
        if orders.kind == "tasks":
            asyncio.run(self._run_tasks(shared))
        else:
            self._run_threads(shared)
        self._tally(shared)

    def _run_threads(self, shared: Shared) -> None:
        plan, url, api = self._plan, self._place.url, Blocking()
        usual = self._store(shared, url)  # one for all threads, as most programs have it; but the last has its own
        stores = [usual] * (plan.threads - 1) + [self._store(shared, url) if plan.threads > 1 else usual]
        if plan.several:
            stores += [self._store(shared, plan.url, calm=True)] * plan.several
        clients = [self._client(shared, api, store, number) for number, store in enumerate(stores)]

        def live(number: int) -> None:
            api.run(self._live(clients[number], number))

        threads = [threading.Thread(target=live, args=(number,), daemon=True) for number in range(1, len(clients))]
        for thread in threads:
            thread.start()
        live(0)
        for thread in threads:
            thread.join()  # for no longer than `_expire` allows
        if self._living:
            raise RuntimeError(f"{', '.join(sorted(self._living))} ended before the time")

    async def _run_tasks(self, shared: Shared) -> None:
        plan, api = self._plan, Asyncio()
        store, calm = locations.open_async(plan, self._place.url), locations.open_async(plan, plan.url)
        shared.injector.inject(store)
        shared.injector.inject(calm, calm=True)
        stores = [store] * plan.tasks + [calm] * plan.several
        clients = [self._client(shared, api, store, number) for number, store in enumerate(stores)]
        tasks = [asyncio.create_task(self._live(client, number)) for number, client in enumerate(clients)]
        self._tasks = {f"{self._place.name}/{number}": task for number, task in enumerate(tasks)}
        await asyncio.gather(*tasks)
        for each in (store, calm):
            with suppress(AttributeError):
                await each.aclose()  # type: ignore[union-attr]  # only some stores have it

    def _store(self, shared: Shared, url: str, *, calm: bool = False) -> Store:
        store = locations.open_blocking(self._plan, url)
        shared.injector.inject(store, calm=calm)
        return store

    def _client(self, shared: Shared, api: Api, store: Store | AsyncStore, number: int) -> Client:
        plan = self._plan
        return Client(
            plan, shared, api, store, f"{self._place.name}/{number}",
            interrupts=number == 0 or not api.threads,
            several=number >= (plan.threads if api.threads else plan.tasks),
        )  # fmt: skip

    async def _live(self, client: Client, number: int) -> None:
        who = f"{self._place.name}/{number}"
        self._living[who] = threading.get_ident()
        await client.live()
        del self._living[who]

    def _tally(self, shared: Shared) -> None:
        shared.history.note("tally", self._place.name, fence=shared.injector.requests)

    def _count_requests(self, shared: Shared) -> None:
        """Write down now and then how many requests there were: a killed process can't do it in the end."""
        while True:
            time.sleep(0.5)
            gc.collect()  # a hold that everybody has forgotten is renewed until then
            self._tally(shared)

    def _expire(self, shared: Shared) -> None:
        """Tell who has not come to its end so long after the time is over, and end with them."""
        grace = self._plan.grace
        time.sleep(max(0.0, shared.until + grace - clock.now()))
        frames = sys._current_frames()
        hung = sorted(self._living.items()) or [(self._place.name, threading.main_thread().ident or 0)]
        for who, thread in hung:
            task = self._tasks.get(who)
            calls = ", ".join((_stack(frames.get(thread)) if task is None else awaited(task))[-DEPTH:])
            shared.history.note("hung", who, note=f"{who} has not come to its end within {grace:g} s: {calls}")
        os._exit(0)


def _stack(frame: FrameType | None) -> list[str]:
    """Tell where a thread is."""
    return [_place(each.filename, each.lineno, each.name) for each in traceback.extract_stack(frame)]


def awaited(task: asyncio.Task[Any]) -> list[str]:
    """Tell where a task is, whose thread only has the event loop: the chain of what it awaits."""
    found, awaits = list[str](), cast("Any", task.get_coro())
    while awaits is not None:
        frame = getattr(awaits, "cr_frame", None) or getattr(awaits, "gi_frame", None)
        if frame is not None:
            found.append(_place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        awaits = getattr(awaits, "cr_await", None) or getattr(awaits, "gi_yieldfrom", None)
    return found


def _place(file: str, line: int | None, name: str) -> str:
    return f"{Path(file).name}:{line} {name}"


def _watch_parent() -> None:
    """End with the parent, whose end closes our input."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Be a worker: what to do comes by standard input, which ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    try:
        worker = Worker(Place(*json.loads(sys.stdin.buffer.readline())))
        sys.stderr.write("ready\n")
        sys.stderr.flush()
        orders = sys.stdin.buffer.readline()
        if not orders:
            return
        threading.Thread(target=_watch_parent, daemon=True).start()
        worker.work(Orders(*json.loads(orders)))
    except BaseException:  # noqa: BLE001 - told to the parent
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # whatever hangs is not waited for
