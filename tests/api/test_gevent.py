"""Under gevent, greenlets are the threads: each has its own holds, and waits for a renewal in another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.locations import EVERY, fresh, url_of

pytestmark = pytest.mark.skipif(sys.implementation.name != "cpython", reason="gevent is installed on CPython only")

ROOT = Path(__file__).parents[2]

A_RELEASE_MEETS_A_RENEWAL = """
from gevent import monkey
monkey.patch_all()
import threading
import caslock
from caslock.stores.memory import MemoryStore

class Slow(MemoryStore):
    renewing, removed, renewed, lost = (threading.Event() for _ in range(4))

    def put_if_version(self, key, value, version, ttl):
        if version:
            self.renewing.set()
            self.removed.wait(1)  # it can't be: the release has to wait for this renewal
        entry = super().put_if_version(key, value, version, ttl)
        if version:
            self.renewed.set()
        return entry

    def invalidate(self, key, version):
        entry = super().invalidate(key, version)
        self.removed.set()
        self.renewed.wait(20)
        self.lost.wait(0.2)
        return entry

class Losses(caslock.Observer):
    def lost(self, event):
        print(event.reason)
        Slow.lost.set()

caslock.observe(Losses())
store = Slow()
lock = caslock.Lock(store, "key", ttl=15)
lock.acquire()
assert store.renewing.wait(20)
lock.release()
assert store.get("key") is None
"""

MANY = """
from gevent import monkey
monkey.patch_all()
import random, sys, threading, time
import caslock

class Losses(caslock.Observer):
    def lost(self, event):
        print(event.reason)

caslock.observe(Losses())
_, url, name = sys.argv
store = caslock.connect(url)
every = [caslock.key(name, letter) for letter in "abc"]
shared = caslock.Lock(store, every[0], ttl=30)
inside = dict.fromkeys(every, 0)

def work(number):
    for turn in range(10):
        keys = random.Random(100 * number + turn).sample(every, 2)
        lock = shared if turn % 2 else caslock.MultiLock(store, keys, ttl=30)
        taken = every[:1] if turn % 2 else keys
        with lock:
            for key in taken:
                inside[key] += 1
            time.sleep(0.002)
            assert all(inside[key] == 1 for key in taken), inside
            for key in taken:
                inside[key] -= 1
    done.append(number)

done = []
threads = [threading.Thread(target=work, args=[number]) for number in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(done) == 20, done
for key in every:
    assert caslock.Lock(store, key).holder() is None
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_release_waits_for_a_renewal_under_way() -> None:
    """As it does in a thread: else that renewal would find the key released, and report a loss."""
    assert run(A_RELEASE_MEETS_A_RENEWAL) == ""


@pytest.mark.long
@pytest.mark.parametrize("kind", EVERY)
def test_greenlets_exclude_each_other(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """One Lock shared by all of them, and MultiLocks that overlap: two are never inside, and nothing is left."""
    assert run(MANY, url_of(kind, request, tmp_path), fresh()) == ""
