"""Retry after a lost reply: a naive lock locks itself out, caslock recognises its own request.

A client that gets no answer does not know whether its request was applied.  A lock that asks "have I added the key?"
mistakes its own first attempt for somebody else's.  caslock asks "who is there now?", and recognises itself by a hold
id that is new for each acquire.  The exit status is 0 if that is what happens.
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
    """A server with the command `add` of memcached (SET NX in Redis), whose first reply is lost."""

    def __init__(self) -> None:
        """Start without keys."""
        self._keys: set[str] = set()

    def add(self, key: str) -> bool:
        """Add the key; return False if it exists."""
        if key in self._keys:
            print("    add: not stored, the key exists")
            return False
        self._keys.add(key)
        print("    add: stored, but the reply is lost")
        raise TimeoutError


def naive_acquire(server: AddServer, key: str) -> bool:
    """Acquire a lock as many programs do: after a timeout, try again."""
    try:
        return server.add(key)
    except TimeoutError:
        return server.add(key)


class LossyStore:
    """A store whose next put loses its request or its reply, as told; prints every request and answer."""

    def __init__(self, store: caslock.Store) -> None:
        """Lose nothing at first."""
        self._store = store
        self.traits = store.traits
        self.lose = ""  # the "request" or the "reply" of the next put
        self.late: Callable[[], object] | None = None  # delivers the lost request after all

    def get(self, key: str) -> caslock.Entry | None:
        """Ask the store."""
        return told("get", self._store.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> caslock.Entry | None:
        """Ask the store, or lose the request or the reply."""
        lose, self.lose = self.lose, ""
        name = f"put if {f'version {version}' if version else 'nothing'} is there"
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
    """Print an answer: the entry that is there now."""
    what = "nothing is there"
    if entry is not None:
        holds = json.loads(entry.value)["holds"]
        what = (
            f"version {entry.version} with hold id ..{holds[0][-8:]}"
            if holds
            else f"version {entry.version}, a free record"
        )
    print(f"    {name}: {what}")
    return entry


def main() -> int:
    """Lose a reply of a naive lock, then a reply and a request of caslock."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="memory://", help="store of the lock (default: %(default)s)")
    store = LossyStore(caslock.connect(parser.parse_args().url))

    print("1. A naive lock: the reply to its add is lost.")
    naive = naive_acquire(AddServer(), "room:42")
    print(f"  acquired: {naive}. It mistook its own first attempt for a rival, so now nobody can acquire the lock.\n")

    lock = caslock.Lock(store, "room:42", timeout=0)
    print("2. caslock: the reply to its put is lost.")
    store.lose = "reply"
    with lock:
        print("  acquired: True. The hold id is its own, so no second put is needed.")
    print("  released.\n")

    print("3. caslock: the put itself is lost.")
    store.lose = "request"
    with lock:
        print("  acquired: True. Nothing was there, so it put again.")
    print("  released with a free record: the lost put may still arrive, and would succeed if nothing were there.\n")

    print("4. That put arrives after all.")
    if store.late is not None:
        store.late()
    locked = lock.locked()
    print(f"  locked: {locked}. The free record has refused it.")
    return 1 if naive or locked else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except caslock.CaslockError as trouble:
        sys.exit(f"{type(trouble).__name__}: {trouble}")
