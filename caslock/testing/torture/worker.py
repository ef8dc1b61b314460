"""The law of this file: one process of clients; it ends with its parent, with its time, and with nobody's help."""

from __future__ import annotations

import asyncio
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
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from caslock import clock
from caslock.testing.proxy import FAULTS, Kind, Passage, chance
from caslock.testing.torture import places
from caslock.testing.torture.history import History
from caslock.testing.torture.plan import PREFIX, Plan
from caslock.testing.torture.tasks import AsyncClient
from caslock.testing.torture.threads import Client
from caslock.testing.torture.trouble import Troubled
from caslock.testing.torture.wall_clock import WallClock
from caslock.testing.torture.witness import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.store import Store

DEPTH: Final = 20
"""Calls that are told of a thread that hangs."""

_KEY: Final = re.compile(re.escape(PREFIX.encode()) + rb"\w+:\d+")
_HOLDS: Final = re.compile(rb'"holds":\[([^\]]*)\]')


def odds(times: float) -> dict[Kind, float]:
    """Tell how likely the faults are that usually are `times` times less so."""
    return {kind: min(0.1, times * each) for kind, each in FAULTS.items()}


def teller(history: History, who: str = "") -> Callable[[bytes, Passage], None]:
    """Make what notes the faults of requests (of worker `who`), with the key and the holds that a request is about."""

    def told(request: bytes, passage: Passage) -> None:
        key, holds = _KEY.search(request), b",".join(_HOLDS.findall(request))
        history.note(
            "fault", who, key[0].decode() if key else "", "", " ".join(re.findall(r"[^\",]+", holds.decode())),
            note=passage.kind, until=passage.seconds,
        )  # fmt: skip

    return told


class Orders(NamedTuple):
    """What a worker is told, as JSON."""

    plan: str
    url: str
    name: str
    kind: str
    folder: str
    until: float
    wire: bool
    """Whether its requests go through the proxy: else it troubles them itself."""


def work(orders: Orders) -> None:
    """Run the clients of one process to their end."""
    plan, url, name, folder = Plan.from_json(orders.plan), orders.url, orders.name, Path(orders.folder)
    random.seed(f"{plan.seed} {name}")  # the jitter of waiting
    history = History(folder / f"{name}.history")
    decide = (
        None
        if orders.wire or not plan.faults
        else chance(f"{plan.seed} {name}", plan.longest_hold_up, odds(plan.faults))
    )
    troubled = Troubled(decide, teller(history, name))
    scene = Scene(history, troubled, places.open_direct(plan), folder, orders.until, WallClock())
    living = dict[str, int]()
    threading.Thread(target=_count, args=(scene, name), daemon=True).start()
    threading.Thread(target=_expire, args=(scene, name, living, plan.grace), daemon=True).start()
    if orders.kind == "tasks":
        asyncio.run(_tasks(plan, scene, url, name, living))
    else:
        _threads(plan, scene, url, name, living)
    history.note("tally", name, fence=troubled.requests, note=str(troubled.faults))


def _threads(plan: Plan, scene: Scene, url: str, name: str, living: dict[str, int]) -> None:
    shared: Store | None = None
    clients = list[Client]()
    for number in range(plan.threads):
        # One store for all threads, as most programs have it; but the last has its own.
        if shared is None or number == plan.threads - 1:
            shared = cast("Store", places.open_store(plan, url))
            scene.troubled.trouble(shared)
        clients.append(Client(plan, scene, shared, f"{name}/{number}", main=number == 0))

    def live(number: int) -> None:
        living[f"{name}/{number}"] = threading.get_ident()
        clients[number].live()
        del living[f"{name}/{number}"]

    threads = [threading.Thread(target=live, args=(number,), daemon=True) for number in range(1, plan.threads)]
    for thread in threads:
        thread.start()
    live(0)
    for thread in threads:
        thread.join()  # for no longer than `_expire` allows
    if living:
        raise RuntimeError(f"{', '.join(sorted(living))} ended before the time")


async def _tasks(plan: Plan, scene: Scene, url: str, name: str, living: dict[str, int]) -> None:
    store = places.open_async(plan, url)
    scene.troubled.trouble(store)

    async def live(who: str) -> None:
        living[who] = threading.get_ident()
        await AsyncClient(plan, scene, store, who).live()
        del living[who]

    await asyncio.gather(*(live(f"{name}/{number}") for number in range(plan.tasks)))
    with suppress(AttributeError):
        await store.aclose()  # type: ignore[union-attr]  # what has it, needs it


def _count(scene: Scene, name: str) -> None:
    """Write down now and then how many requests there were: a killed process can't do it in the end."""
    gc.freeze()
    while True:
        time.sleep(0.5)
        gc.collect()  # a hold that everybody has forgotten is renewed until then
        scene.history.note("tally", name, fence=scene.troubled.requests, note=str(scene.troubled.faults))


def _expire(scene: Scene, name: str, living: dict[str, int], grace: float) -> None:
    """Tell who has not come to its end so long after the time is over, and end with them."""
    time.sleep(max(0.0, scene.until + grace - clock.now()))
    frames = sys._current_frames()  # noqa: SLF001 - public, says its documentation
    for who, thread in sorted(living.items()) or [(name, threading.main_thread().ident or 0)]:
        where = traceback.extract_stack(frames.get(thread))
        told = ", ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in where[-DEPTH:])
        scene.history.note("hung", who, note=f"{who} has not come to its end within {grace:g} s: {told}")
    os._exit(0)


def _watch_parent() -> None:
    """End with the parent, whose end closes our input."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Be a worker: what to do comes by standard input, which ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    sys.stderr.write("ready\n")
    sys.stderr.flush()
    line = sys.stdin.buffer.readline()
    if not line:
        return
    orders = Orders(*json.loads(line))
    threading.Thread(target=_watch_parent, daemon=True).start()
    try:
        work(orders)
    except BaseException:  # noqa: BLE001 - told to the parent
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # whatever hangs is not waited for
