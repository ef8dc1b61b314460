"""Tries the changes, each in a process of its own.

pytest imports and collects the tests once, and starts nothing else: no thread, no server.  A forked process runs them
all without any change, and notes which lines each test runs and how long it takes.  Then one process is forked for each
change.  It swaps the code, and runs the tests of the changed lines until one fails or hangs.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import pytest

from caslock.local.lock import _remembered
from tests.proof.mutation.changes import Change
from tests.proof.mutation.child import Child, first_word
from tests.proof.mutation.swap import Functions

if TYPE_CHECKING:
    from _typeshed import TraceFunction

SURVIVED: Final = "SURVIVED"

TWICE: Final = 2
"""How often a test has to fail."""

HANG: Final = 6.0
"""Seconds, besides ten times what it takes otherwise, after which a test counts as failed."""

ALWAYS: Final = "short_simulator"
"""The file whose tests are not left out for their length."""

MOST_LINES: Final = 1024
"""Lines of one file."""

PROFILING: Final = 1200.0
"""Seconds for all tests without any change, while each line is traced."""


class Outcome(NamedTuple):
    """What has become of a change."""

    change: Change
    killer: str
    """The test that failed; "" if none did."""
    tests: int
    """How many tests there were to run."""


class Profile(NamedTuple):
    """What one test does without any change."""

    seconds: float
    lines: frozenset[tuple[str, int]]
    passed: bool


class Runner:
    """A plugin of pytest, in place of its loop over the tests."""

    def __init__(
        self, changes: Sequence[Change], *, root: Path, jobs: int, budget: float, say: Callable[[str], None]
    ) -> None:
        """Begin with nothing tried.

        Args:
            changes: what to try; their files are relative to `root`.
            root: the folder of the project.
            jobs: how many processes run at the same time.
            budget: seconds of the tests of one change, as measured without it, besides those of the simulator;
                longer ones are left out.
            say: prints a line.

        """
        self.outcomes: list[Outcome] = []
        self._changes = changes
        self._files = {change.file: str(root / change.file) for change in changes}
        self._jobs = jobs
        self._budget = budget
        self._say = say
        self._kills: Counter[str] = Counter()
        self._failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each change."""
        assert threading.active_count() == 1, "a fork copies only one thread"
        functions = Functions(self._files.values())
        profiles = self._profiles(session.items)
        left = list(reversed(self._changes))
        running: dict[Child, tuple[Change, list[pytest.Item]]] = {}
        while left or running:
            while left and len(running) < self._jobs:
                change = left.pop()
                chosen = self._chosen(change, profiles)
                running[self._child(change, chosen, functions)] = change, [item for item, _ in chosen]
            ended = first_word(running)
            if ended is not None:
                self._note(*running.pop(ended), ended.end())
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._failed |= report.failed

    def _chosen(self, change: Change, profiles: dict[pytest.Item, Profile]) -> list[tuple[pytest.Item, float]]:
        """Return the tests that run a changed line: first those that are short, or have failed for many changes."""
        places = {(self._files[change.file], line) for line in change.lines}
        found = [
            (item, profile.seconds)
            for item, profile in profiles.items()
            if profile.passed and not places.isdisjoint(profile.lines)
        ]
        found.sort(key=lambda each: each[1] / (1 + self._kills[each[0].nodeid]))
        left = self._budget
        chosen: list[tuple[pytest.Item, float]] = []
        for item, seconds in found:
            if item.path.stem == ALWAYS:
                chosen.append((item, seconds))
            elif left > 0:
                left -= seconds
                chosen.append((item, seconds))
        return chosen

    def _child(self, change: Change, chosen: Sequence[tuple[pytest.Item, float]], functions: Functions) -> Child:
        def work(tell: int) -> None:
            functions.apply(change, self._files[change.file])
            for number, (item, _) in enumerate(chosen):
                os.write(tell, b".")
                for _ in range(TWICE):  # a test that fails by chance seldom does so twice
                    self._failed = False
                    _run(item, [item for item, _ in chosen[number + 1 : number + 2]])
                    if not self._failed:
                        break
                else:
                    return
            os.write(tell, b"!")

        return Child(work, [HANG, *(HANG + 10 * seconds for _, seconds in chosen)])

    def _note(self, change: Change, items: Sequence[pytest.Item], heard: bytes) -> None:
        """Note what has become of a change: a dot was heard for each test that began, and "!" at the end of all."""
        begun = heard.count(b".")
        killer = "" if heard.endswith(b"!") or not begun else items[begun - 1].nodeid
        self._kills[killer] += 1
        self.outcomes.append(Outcome(change, killer, len(items)))
        verdict = killer or f"{SURVIVED} {len(items)} tests{'' if heard else ': it could not be put in'}"
        number = f"{len(self.outcomes)}/{len(self._changes)}"
        self._say(f"{number}, line {change.lines.start} of {change}   {verdict}")

    def _profiles(self, items: Sequence[pytest.Item]) -> dict[pytest.Item, Profile]:
        """Run every test without any change, in forked processes."""
        self._say(f"{len(items)} tests are run without any change")
        shares = [items[number :: self._jobs] for number in range(self._jobs)]
        running = {Child(partial(self._profile, share), [PROFILING]): share for share in shares}
        profiles: dict[pytest.Item, Profile] = {}
        while running:
            ended = first_word(running)
            if ended is not None:
                found: list[Profile] = pickle.loads(ended.end())  # noqa: S301 - our own
                profiles.update(zip(running.pop(ended), found, strict=True))
        for item, profile in profiles.items():
            if not profile.passed:
                self._say(f"left out, because it fails without any change: {item.nodeid}")
        return profiles

    def _profile(self, items: Sequence[pytest.Item], tell: int) -> None:
        """Run tests, and tell what they do."""
        found = []
        for number, item in enumerate(items):
            self._failed = False
            _remembered.cache_clear()  # or else only the first test that has them would run the lines that check them
            with _Traced(self._files.values()) as traced:
                _run(item, items[number + 1 : number + 2])
            found.append(Profile(traced.seconds, frozenset(traced.lines), not self._failed))
        with os.fdopen(tell, "wb", closefd=False) as file:
            pickle.dump(found, file)


def _run(item: pytest.Item, following: Sequence[pytest.Item]) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following[0] if following else None)


class _Traced:
    """Notes the lines of some files that run, in every thread, and in processes that a test forks."""

    def __init__(self, files: Iterable[str]) -> None:
        self._first = {file: number * MOST_LINES for number, file in enumerate(files)}
        self._ran = mmap.mmap(-1, len(self._first) * MOST_LINES)  # a byte for each line, which all processes share
        self._began = time.perf_counter()
        self.lines: set[tuple[str, int]] = set()
        self.seconds = 0.0

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        threading.settrace(self._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(None)
        threading.settrace(None)
        self.seconds = time.perf_counter() - self._began
        ran = self._ran[:]
        for file, first in self._first.items():
            self.lines |= {(file, line) for line, byte in enumerate(ran[first : first + MOST_LINES]) if byte}

    def _enter(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        del event, argument
        return self._pass if frame.f_code.co_filename in self._first else None

    def _pass(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        del argument
        if event == "line":
            self._ran[self._first[frame.f_code.co_filename] + frame.f_lineno] = 1
        return self._pass
