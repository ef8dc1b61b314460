"""The scenes: each plays one fault, looks who can acquire afterwards, and states beforehand what is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.faults.crowds import cancelled, shared
from benchmarks.faults.lost_replies import acquire_unanswered, outage, release_unanswered
from benchmarks.faults.pauses import fences, forked, paused, stale
from benchmarks.faults.subject import AsyncSubject
from benchmarks.places import FILE_PLACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.faults.stage import Cell, Stage
    from benchmarks.faults.subject import Subject


class Scene(NamedTuple):
    """One column of the table."""

    right: str
    play: Callable[[Stage], Cell]
    brief: bool = False
    """Whether the lease has to end meanwhile, so that a short one is used."""
    wire: bool = False
    """Whether it needs a connection to cut."""


SCENES: Final[dict[str, Scene]] = {
    "acquire cut": Scene(
        "acquire is applied, and its connection is cut before the reply. "
        "Right: it holds the lock and says so, or it says that it failed and left nothing behind.",
        lambda stage: acquire_unanswered(stage, "cut after"),
        wire=True,
    ),
    "acquire mute": Scene(
        "The same, but the connection stays open and silent.",
        lambda stage: acquire_unanswered(stage, "drop reply"),
        wire=True,
    ),
    "release cut": Scene(
        "release is applied, and its connection is cut before the reply; somebody else acquires; release is called "
        "again. Right: somebody else acquires at once and keeps the lock, and the caller learns that it was released.",
        lambda stage: release_unanswered(stage, "cut after"),
        wire=True,
    ),
    "release mute": Scene(
        "The same, but the connection stays open and silent.",
        lambda stage: release_unanswered(stage, "drop reply"),
        wire=True,
    ),
    "outage": Scene(
        "release while every connection is cut; if it raises, release again when the server is back. "
        "Right: the lock is free then.",
        outage,
        wire=True,
    ),
    "cancel": Scene(
        "200 tasks, each cancelled at another moment of its acquire, over a working connection. "
        "Right: no key remains that nobody holds.",
        cancelled,
    ),
    "fork": Scene(
        "The process forks inside the `with` block, and the child leaves the block. Right: the parent keeps its lock.",
        forked,
    ),
    "shared": Scene(
        "Two threads (or tasks) use one Lock object. "
        "Right: one at a time, or one is refused; and the lock is free after both.",
        shared,
    ),
    "stale": Scene(
        "The holder is stopped (SIGSTOP) until its lease is over and somebody else has acquired; it continues, and "
        "releases. Right: somebody else keeps the lock, and release says that it was too late.",
        stale,
        brief=True,
    ),
    "pause": Scene(
        "The same, but before it releases: does the holder learn of the loss? "
        "ok: it is told without asking. if asked: only by a further call.",
        paused,
        brief=True,
    ),
    "fence": Scene(
        "Does each holder get a number that is larger than those before, for the resource to check?", fences
    ),
}


VERDICTS: Final = {
    "ok": "what the scene states as right",
    "BLOCKED n s": "nobody held the lock, and nobody could acquire it for n seconds",
    "LOST LOCK": "somebody else acquired, although the holder had not released and its lease was not over",
    "TWO INSIDE": "two held the lock at the same time",
    "n ORPHANS": "n keys that nobody held kept others out; the footnote says how many acquires were cancelled in time",
    "FALSE LOSS": "release was applied once, in time, but said that the lock was not the caller's",
    "unclear": "release first raised an error of the connection, and when called again said that the lock was not the "
    "caller's; so the caller never learns whether it held the lock until then",
    "not told": "the holder was not told of its loss",
    "if asked": "the holder learns of its loss only by a further call",
    "no fence": "there is no number that a resource could check",
    "HUNG": "it did not end in time",
    "failed": "the scene could not be completed, for the reason given",
    "n/a": "the scene cannot be played, for the reason given",
}


def excuse(name: str, subject: Subject | AsyncSubject) -> str:
    """Say why a scene cannot be played with a library; empty if it can."""
    if SCENES[name].wire and subject.place == FILE_PLACE:
        return "a file has no connection to cut"
    if name == "cancel" and not isinstance(subject, AsyncSubject):
        return "a blocking API has no tasks to cancel"
    if name == "fork" and isinstance(subject, AsyncSubject):
        return "asyncio does not support a fork inside a running loop"
    if name == "shared" and not isinstance(subject, AsyncSubject):
        return subject.unshared
    return ""
