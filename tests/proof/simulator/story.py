"""What a run has done, one line for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from caslock.store import ABSENT
from tests.proof.simulator.store import FIRST_VERSION, Request, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.store import Entry, Put
    from tests.proof.simulator.plan import Plan


Choice: TypeAlias = tuple[str, str]
"""Who, and what happens to it."""


class Step(NamedTuple):
    time: float
    who: str
    what: str
    request: Request | None = None
    answer: Sequence[Entry | None] | None = None
    """What went back, and came; None: nothing did."""


class Violation(AssertionError):  # noqa: N818 - named by what it is
    """A law was broken; the text is the story that led to it."""

    def __init__(self, law: str, plan: Plan, choices: Sequence[Choice], story: Sequence[Step]) -> None:
        super().__init__(f"{law}\n{text(story)}")
        self.law = law
        self.plan = plan
        self.choices = tuple(choices)
        self.story = tuple(story)


def text(story: Sequence[Step]) -> str:
    return "\n".join(f"{step.time:9.4f}  {line(step)}" for step in story)


def line(step: Step) -> str:
    words = f"{step.who}: " if step.who else ""
    if step.request is None:
        return words + step.what
    words += ask(step.request)
    if step.answer is not None:
        words += f" -> {', '.join(stands(entry) for entry in step.answer)}"
    return words + (f" [{step.what}]" if step.what != "go" else "")


def ask(request: Request) -> str:
    words = f"{request.verb} {' + '.join(_part(request.verb, part) for part in request.parts)}"
    return words + (f" (waits {request.timeout:g} s)" if request.verb == "wait" else "")


def _part(verb: str, part: Put) -> str:
    location = "" if verb == "get" else " if absent" if part.version == ABSENT else f" at {short(part.version)}"
    if verb in {"get", "remove"}:
        return part.key + location
    record = read(part.value)
    fence = "" if record.fence is None else f", fence {short(record.fence)}"
    return f"{part.key}={'+'.join(record.holds) or 'free'}{location} for {part.ttl:g} s{fence}"


def stands(entry: Entry | None) -> str:
    if entry is None or entry.version == ABSENT:
        return "nothing" if entry is None else "nothing, and one is woken"
    return f"{short(entry.version)}: {'+'.join(read(entry.value).holds) or 'free'}"


def short(version: int) -> int:
    """A version as people read it."""
    return version and version - FIRST_VERSION
