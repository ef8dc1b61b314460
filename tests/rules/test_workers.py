"""Threads that run jobs, one step at a time: how many there are, and what becomes of a job."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from caslock.local import workers as module
from caslock.local.workers import LINGER, Workers, run, run_safely, start


class Alarm(threading.Condition):
    """A condition for which nobody waits: `meanwhile` is what happens instead, and `lingered` for how long."""

    def __init__(self, guard: threading.RLock) -> None:
        super().__init__(guard)
        self.lingered: list[float | None] = []
        self.meanwhile: list[Callable[[], object]] = []
        self.notified = 0

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # type: ignore[override] # of a class of typeshed
        assert self._is_owned()  # type: ignore[attr-defined] # of threading.Condition
        if not predicate():
            self.lingered.append(timeout)
            if self.meanwhile:
                self.meanwhile.pop(0)()
        return bool(predicate())

    def notify(self, n: int = 1) -> None:
        self.notified += n
        super().notify(n)


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.workers = Workers("of a test", most)
        self.workers._more = self.alarm = Alarm(self.workers._guard)
        self.started: list[Callable[[], None]] = []
        self.refused = False
        monkeypatch.setattr(module, "start", self._start)
        self.done: list[object] = []

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread | None:
        if name != "of a test":
            return start(target, name)
        if self.refused:
            return None
        self.started.append(target)
        return threading.current_thread() if len(self.started) == 1 else threading.Thread()

    def do(self, *jobs: object) -> None:
        for job in jobs:
            self.workers.do(lambda job=job: self.done.append(job))  # type: ignore[misc] # its parameter has a default


def test_threads_are_started_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each job, and no more than `most`; the jobs are run in the order of their coming."""
    scene = Scene(monkeypatch, 2)
    scene.do(1, 2, 3)
    assert (len(scene.started), scene.done, scene.alarm.notified) == (2, [], 3)
    scene.started[0]()
    assert scene.done == [1, 2, 3]
    assert scene.alarm.lingered == [LINGER]
    assert len(scene.workers._threads) == 1  # the other one has not run yet
    assert scene.workers._idle == 0


def test_a_thread_without_a_job_gets_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that has a job does not: for a second job there is a second thread."""
    scene = Scene(monkeypatch, 9)
    scene.do(1)
    scene.alarm.meanwhile = [lambda: scene.do(2), lambda: scene.do(3, 4)]
    scene.started[0]()
    assert scene.done == [1, 2, 3, 4]
    assert len(scene.started) == 2  # for the fourth
    scene = Scene(monkeypatch, 9)
    scene.workers.do(lambda: scene.do(2))
    scene.started[0]()
    assert len(scene.started) == 2


def test_without_any_thread_a_job_is_run_by_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or not at all; jobs that come of it are run after it, and nothing is waited for."""
    scene = Scene(monkeypatch, 2)
    scene.refused = True

    def job() -> None:
        scene.do(2)
        scene.done.append(1)

    scene.workers.do(job)
    assert scene.done == [1, 2]
    assert scene.alarm.lingered == [0.0]
    scene.workers.do(lambda: scene.done.append("never"), here=False)
    scene.do(3)
    assert scene.done == [1, 2, 3]
    assert not scene.workers._threads


def test_a_thread_that_is_there_runs_what_no_other_can_be_started_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is not held up by it."""
    scene = Scene(monkeypatch, 2)
    scene.do(1)
    scene.refused = True
    scene.workers.do(lambda: scene.done.append(2), here=False)
    assert not scene.done
    scene.started[0]()
    assert scene.done == [1, 2]


def test_a_thread_that_waits_refers_to_nothing_of_its_last_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abandoned hold would be renewed for as long as the thread waits."""
    scene, gone = Scene(monkeypatch, 1), list[bool]()

    class Job:
        def __call__(self) -> None:
            """Do nothing."""

    job = Job()
    reference = weakref.ref(job)
    scene.workers.do(job)
    del job

    def look() -> None:
        gc.collect()
        gone.append(reference() is None)

    scene.alarm.meanwhile = [look]
    scene.started[0]()
    assert gone == [True]


def test_what_a_job_raises_is_reported_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hook of threads, with the thread; if that raises, by Python's own, with what the hook has raised."""
    told: list[tuple[object, threading.Thread | None]] = []
    last: list[object] = []
    error, of_the_hook = SystemExit("of the job"), ValueError("of the hook")

    def fail() -> None:
        raise error

    def hook(told_of: threading.ExceptHookArgs) -> None:
        told.append((told_of.exc_value, told_of.thread))
        if len(told) > 1:
            raise of_the_hook

    def final(told_of: threading.ExceptHookArgs) -> None:
        last.append((told_of.exc_value, told_of.thread))
        raise RuntimeError("nobody listens")

    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.setattr(threading, "__excepthook__", final)
    me = threading.current_thread()
    assert run_safely(fail) is False
    assert (told, last) == ([(error, me)], [])
    assert run_safely(fail) is False
    assert last == [(of_the_hook, me)]
    assert run_safely(lambda: None) is True


def test_a_coroutine_that_suspends_is_closed_and_refused() -> None:
    """The blocking API can't wait for it."""
    ended: list[bool] = []

    async def suspend() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    async def answer() -> int:
        return 7

    assert run(answer()) == 7
    with pytest.raises(RuntimeError, match="is it an AsyncStore"):
        run(suspend())
    assert ended == [True]


def test_a_thread_is_a_daemon_and_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not delay the exit of the interpreter, at which no other can be started."""
    ran = threading.Event()
    thread = start(ran.set, "of a test")
    assert thread is not None
    thread.join(50)
    assert (ran.is_set(), thread.name, thread.daemon) == (True, "of a test", True)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert start(ran.set, "of a test") is None
