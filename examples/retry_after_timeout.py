"""The reply to a lock's request is lost: caslock's retry finds its own identity, a naive lock locks itself out.

Whoever gets no answer does not know whether the request was applied.  A lock that asks "have I added the key?" takes
its own first attempt for somebody else's.  caslock asks "who stands there now?", and knows itself by a hold id that
is new for every acquire.  The exit status is 0 if that is what happens.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

import caslock

if TYPE_CHECKING:
    from collections.abc import Callable


class AddServer:
    """A server with `add`, as memcached has it (in Redis: SET NX), whose first reply is lost."""

    def __init__(self) -> None:
        """Begin with no keys."""
        self._keys: set[str] = set()

    def add(self, key: str) -> bool:
        """Store the key; False if it is there already."""
        if key in self._keys:
            print("    add: not stored, the key is there")
            return False
        self._keys.add(key)
        print("    add: stored, but the reply is lost")
        raise TimeoutError


def naive_acquire(server: AddServer, key: str) -> bool:
    """Acquire a lock as many do: after a timeout, try once more."""
    try:
        return server.add(key)
    except TimeoutError:
        return server.add(key)


class LossyStore:
    """Any store behind a line that loses what it is told to, and prints what comes over it."""

    def __init__(self, store: caslock.Store) -> None:
        """Lose nothing yet."""
        self._store = store
        self.traits = store.traits
        self.lose = ""  # the "request" or the "reply" of the next put
        self.late: Callable[[], object] | None = None  # delivers the lost request after all

    def get(self, key: str) -> caslock.Entry | None:
        """Ask the store."""
        return told("get", self._store.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> caslock.Entry | None:
        """Ask the store, and perhaps lose something."""
        lose, self.lose = self.lose, ""
        name = f"put if {f'version {version}' if version else 'nothing'} stands"
        if lose == "request":
            print(f"    {name}: the request is lost")
            self.late = partial(self.put_if_version, key, value, version, ttl)
        else:
            entry = self._store.put_if_version(key, value, version, ttl)
            if not lose:
                return told(name, entry)
            print(f"    {name}: applied, but the reply is lost")
        raise caslock.StoreUnavailable("no answer in time")

    def invalidate(self, key: str, version: int) -> caslock.Entry | None:
        """Ask the store."""
        return told(f"remove version {version}", self._store.invalidate(key, version))


def told(name: str, entry: caslock.Entry | None) -> caslock.Entry | None:
    """Print an answer on its way: what stands now."""
    what = "nothing stands"
    if entry is not None:
        holds = json.loads(entry.value)["holds"]
        what = f"version {entry.version} stands, with hold id ..{holds[0][-8:]}" if holds else "a free record stands"
    print(f"    {name}: {what}")
    return entry


def main() -> int:
    """Lose a reply of a naive lock, a reply of caslock's, and a request of caslock's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="memory://", help="where caslock's lock lives (%(default)s)")
    store = LossyStore(caslock.connect(parser.parse_args().url))

    print("1. A naive lock: the reply to its add is lost.")
    naive = naive_acquire(AddServer(), "room:42")
    print(f"  acquired: {naive}. Nobody is inside, and nobody gets in: it took its own first attempt for a rival.\n")

    lock = caslock.Lock(store, "room:42", timeout=0)
    print("2. caslock: the reply to its put is lost.")
    store.lose = "reply"
    with lock:
        print("  acquired: True. The hold id that stands is its own, so it puts nothing more.")
    print("  released.\n")

    print("3. caslock: the put itself is lost.")
    store.lose = "request"
    with lock:
        print("  acquired: True. Nothing stood, so it put again.")
    print("  released, into a free record: the lost put may just be late, and it waits for nothing to stand.\n")

    print("4. That put arrives after all.")
    if store.late is not None:
        store.late()
    locked = lock.locked()
    print(f"  locked: {locked}. It has come too late to lock anybody out.")
    return 1 if naive or locked else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except caslock.CaslockError as trouble:
        sys.exit(f"{type(trouble).__name__}: {trouble}")
