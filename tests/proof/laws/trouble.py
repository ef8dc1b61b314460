"""The faults that a test plans: each happens to every request, at every try, at every moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from caslock.protocol.attempt import Retry
from caslock.testing.drive import done
from caslock.testing.faults import Fault, duplicate, echo, late, lose_reply, lose_request, unsent
from tests.proof.laws.scene import AnyFaultyStore

Point = Literal["done", "left", "taken", "end"]

POINTS: Final[tuple[Point, ...]] = ("done", "left", "taken", "end")
"""Moments of a scenario: the call has returned, its client has released, another has acquired and released."""

RETRY: Final = Retry(get=2, put=2)
ATTEMPTS: Final = 3
"""With that `RETRY`: first, middle, last."""

KINDS: Final[dict[str, tuple[Fault, ...]]] = {
    "lost request": (lose_request,),
    "unsent request": (unsent,),
    "lost reply": (lose_reply,),
    "late request": (*(late(before=k) for k in range(1, 5)), *(late(after=k) for k in (1, 2)), late()),
    "request that arrives twice": (duplicate,),
    "request that arrives again": (
        *(echo(before=k) for k in range(1, 4)),
        *(echo(after=k) for k in range(1, 3)),
        echo(),
    ),
}


class Trouble(NamedTuple):
    """What happens to one request of a call, and when what is late arrives."""

    verb: Literal["get", "put_if_version", "invalidate"]
    nth: int
    fault: Fault
    point: Point | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.nth} is {self.fault}" + (f", at the point {self.point!r}" if self.point else "")

    @property
    def echoes(self) -> bool:
        """Whether a request that was answered arrives again, of which no reply can show anything."""
        return self.fault.kept and self.fault.error is None

    @property
    def exhausts(self) -> bool:
        """Whether the attempts of a call are used up by that, so that it may say that it got no answer."""
        lost = self.fault.applied == 0 or self.verb == "get"
        return self.nth == ATTEMPTS and self.fault.error is not None and lost

    def plan(self, faulty: AnyFaultyStore, *, writes_by: Literal["put_if_version", "invalidate"]) -> None:
        """Plan it, and before it what makes a call come to that request at all."""
        if self.verb == "get":
            faulty.on(writes_by, 1, lose_reply)
        faulty.on(self.verb, range(1, self.nth), lose_request)
        faulty.on(self.verb, self.nth, self.fault)

    async def reach(self, point: Point, faulty: AnyFaultyStore) -> None:
        """Deliver what is late until that moment; at the end, all of it."""
        if point in (self.point, "end"):
            await done(faulty.deliver())


def troubles(kind: str, *verbs: Literal["get", "put_if_version", "invalidate"]) -> Iterator[Trouble]:
    """Return every trouble of that kind, for all attempts of these verbs."""
    for verb in verbs:
        faults = KINDS[kind] if verb != "get" else KINDS[kind][:1]  # a read that comes late does nothing, whenever
        for nth in range(1, ATTEMPTS + 1):
            for fault in faults:
                waits = fault.kept and fault.before is None and fault.after is None
                for point in POINTS if waits else (None,):
                    yield Trouble(verb, nth, fault, point)
