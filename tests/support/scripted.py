"""A store whose answers are written down, and attempts that ask it: for tests of single steps of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVar, cast

from caslock.errors import StoreUnavailable
from caslock.protocol.attempt import Attempt, FirstRecord, LockSettings, Retry, Terms
from caslock.protocol.life import State
from caslock.protocol.record import Stamp, encode, opening
from caslock.protocol.runtime import Runtime
from caslock.protocol.sightings import Sightings
from caslock.store import Entry, Put, Removal, Traits

T = TypeVar("T")

OURS: Final = b"ours"
"""As the value of an answer: what was written last."""

TAKES: Final = 2.0
"""Seconds of each request, answered or not."""

START, TTL, PATIENCE = 1000.0, 30.0, 5.0
STAMP = Stamp("", "host", 7, "")


class Scripted:
    """A runtime and its store: each request is given the next answer of a list."""

    def __init__(self, *answers: Entry | BaseException | None) -> None:
        self.clock = START
        self.answers = list(answers)
        self.asked: list[tuple[str, float]] = []
        self.losses = 0
        self.traits = Traits("scripted://", expiry_lag=0.0, request_timeout=PATIENCE)
        self.patience = PATIENCE
        self.quarantines = Sightings()
        self.store = self
        self.batching: Scripted | None = None
        self.queueing: Scripted | None = None
        self.watching: Scripted | None = None
        self.waited: list[float] = []
        self.mixed: list[Entry] = []  # the next answer to a batch, where they differ
        self.takes = TAKES
        self.gone = False
        self.written: list[bytes] = []
        self.background: list[float] = []
        self.slept: list[float] = []
        self.watched: list[Attempt] = []

    def now(self) -> float:
        return self.clock

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock += seconds

    def watch(self, attempt: Attempt) -> None:
        self.watched.append(attempt)

    def report_loss(self, attempt: Attempt) -> None:
        del attempt
        self.losses += 1

    async def get(self, key: str) -> Entry | None:
        del key
        return self._answer("get")

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        del key, version, ttl
        self.written.append(value)
        return self._answer("put")

    async def invalidate(self, key: str, version: int) -> Entry | None:
        del key, version
        return self._answer("invalidate")

    async def put_many(self, puts: Sequence[Put]) -> list[Entry | None] | None:
        self.written += [put.value for put in puts]
        answer = self._answer("put_many")
        if answer is None:
            return None
        several = self.mixed or [answer] * len(puts)
        self.mixed = []
        return [
            Entry(put.value, each.version) if each.value in (OURS, self.written[-1]) else each
            for put, each in zip(puts, several, strict=True)
        ]

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        del key, ttl
        self.written.append(value)
        self.waited.append(timeout)
        return self._answer("wait")

    async def wait_while(self, key: str, version: int, timeout: float) -> Entry | None:
        del key, version
        self.waited.append(timeout)
        return self._answer("watch")

    async def invalidate_many(self, removals: Sequence[Removal]) -> list[Entry | None] | None:
        answer = self._answer("invalidate_many")
        return None if answer is None else [answer] * len(removals)

    def in_background(self, settle: Callable[[float], Coroutine[object, object, object]], seconds: float) -> None:
        del settle
        self.background.append(seconds)

    def ended(self, attempt: Attempt) -> bool:
        del attempt
        return self.gone

    def _answer(self, verb: str) -> Entry | None:
        self.asked.append((verb, self.clock - START))
        self.clock += self.takes
        answer = self.answers.pop(0)
        if isinstance(answer, Entry) and answer.value == OURS:  # what was written last
            return Entry(self.written[-1], answer.version)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


class Bell:
    """An event; it counts how often it was set."""

    def __init__(self) -> None:
        self.rung = 0

    def set(self) -> None:
        self.rung += 1


class Mutex:
    """A mutex; it notes who waits for it, and lets them in."""

    def __init__(self) -> None:
        self.taken = False
        self.waits = 0

    def acquire(self, *, blocking: bool) -> bool:
        assert not blocking
        free, self.taken = not self.taken, True
        return free

    def release(self) -> None:
        self.taken = False

    async def __aenter__(self) -> None:
        self.waits += self.taken
        self.taken = True

    async def __aexit__(self, *error: object) -> None:
        self.taken = False


def an_attempt(script: Scripted, retry: Retry = Retry(), *, key: str = "key", ttl: float = TTL) -> Attempt:
    terms = Terms(cast("Runtime", script), key, "me", LockSettings(ttl, retry=retry))
    return Attempt(terms, "mine.1", lambda: FirstRecord(STAMP, opening("me", ttl, STAMP)), Mutex(), caller=None)


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine, which never suspends."""
    return asyncio.run(coroutine)


def lost() -> StoreUnavailable:
    return StoreUnavailable("no answer")


def refused() -> StoreUnavailable:
    return StoreUnavailable("connection refused", sent=False)


def held(script: Scripted, retry: Retry = Retry(), *, key: str = "key") -> Attempt:
    """Hold the key since the start."""
    attempt = an_attempt(script, retry, key=key)
    write = attempt.first(START)
    assert write.record is not None
    assert write.value == encode(write.record)
    attempt.holds_with(write.record, 5, START)
    attempt.state = State.HELD
    return attempt
