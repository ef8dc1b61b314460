"""What an attempt may believe: the record it holds the key with, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caslock.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.protocol.record import Record
    from caslock.protocol.writes import InFlight

NEVER: Final = float("inf")


def margin(ttl: float) -> float:
    """How much earlier than the store we end a lease: clocks drift (1% + 2 ms, as Redlock has it)."""
    return min(0.01 * ttl + 0.002, ttl / 2)


class Lease:
    """The lease of one attempt.  It is believed only from a record that was seen at the store."""

    __slots__ = (
        "asked",
        "auto_renew",
        "began",
        "deadline",
        "due",
        "failure",
        "fence",
        "lost",
        "max_hold",
        "on_loss",
        "record",
        "reported",
        "reporting",
        "ttl",
        "version",
    )

    def __init__(self, ttl: float, max_hold: float, auto_renew: bool) -> None:  # noqa: FBT001 - by position, it is faster
        """Begin as not held; `ttl` applies to every lease until an extension changes it."""
        self.ttl: float = ttl
        self.max_hold: float = max_hold
        self.auto_renew: bool = auto_renew
        self.asked: float = ttl  # seconds asked for by the write that is sent now
        self.record: Record | None = None
        self.version: int = ABSENT
        self.fence: int = 0
        self.began: float = 0.0
        self.deadline: float = -NEVER  # we believe that we hold the key until then, and no longer
        self.due: float = NEVER  # when to renew it; the deadline if it is no longer renewed
        self.failure: str = ""  # of the last renewal, if it has failed
        self.lost: str = ""  # why, once it is lost
        self.on_loss: list[Callable[[], object]] = []  # called when it is lost
        self.reported: bool = False  # whether somebody has taken `on_loss` to call it
        self.reporting: bool = False  # whether somebody is to call it

    def believe(self, record: Record, version: int, landed: InFlight | None, now: float) -> None:
        """Note that we hold the key with `record`: only here does the deadline become later.

        `landed` is the write of ours that put it there.  None: another hold of our owner has written the record, which
        does not shorten our lease.
        """
        fence = version if record.fence is None else record.fence  # as in `fence_of`
        if fence != self.fence:  # a new tenure; the same fence means another write of the present one
            self.began, self.fence = now, fence
        self.record, self.version = record, version
        if landed is None:
            return
        self.failure = ""
        end = landed.at + landed.ttl  # the ttl counts from before the request
        self.deadline = end - margin(landed.ttl)
        self.due = self._next_renewal(landed.at, landed.ttl)

    def forget(self) -> None:
        """Note that we do not hold the key, while still trying: a later success is another tenure."""
        self.record, self.version, self.fence, self.began, self.deadline = None, ABSENT, 0, 0.0, -NEVER

    def rest(self, until: float) -> None:
        """Nobody holds it from now on, and nobody is told of its end; it is looked at at the moment `until`."""
        self.reported, self.due = True, until

    def resume(self, now: float) -> None:
        """It is held again, by another hold: `max_hold` begins anew."""
        self.on_loss, self.reported, self.reporting, self.began = [], False, False, now
        self.due = self._next_renewal(self.deadline + margin(self.ttl) - self.ttl, self.ttl)

    def ask(self, ttl: float | None, now: float) -> bool:
        """Prepare a renewal for `ttl` seconds (None: the ttl that was accepted last); False: `max_hold` is over.

        A shorter lease is believed from the moment it is sent, a longer one only once it is answered.
        """
        self.asked = min(self.ttl if ttl is None else ttl, self.began + self.max_hold - now)
        if self.asked <= 0:
            return False
        self.deadline = min(self.deadline, now + self.asked - margin(self.asked))
        self.due = min(self.due, self._next_renewal(now, self.asked))
        return True

    def _next_renewal(self, sent: float, ttl: float) -> float:
        """When to renew a lease of `ttl` seconds that was asked for at `sent`; the deadline: no more."""
        renews = self.auto_renew and sent + ttl < self.began + self.max_hold
        return sent + ttl / 3 if renews else self.deadline

    def end(self, awaited: str) -> str:
        """Return why the lease has ended.  `awaited`: what was not done in time, "renewed" or "released"."""
        if self.max_hold <= self.ttl or self.began + self.max_hold <= self.deadline + margin(self.ttl) + 0.001:
            return f"its max_hold of {self.max_hold:g} s was reached"
        why = f"its lease ended before it was {awaited}" if self.auto_renew else "its lease ended (auto_renew is off)"
        return f"{why}; the last renewal failed: {self.failure}" if self.failure else why

    def tell(self) -> list[Callable[[], object]] | None:
        """Note that the loss is reported, and return what to call for it; None: it was reported before."""
        if self.reported:
            return None
        self.reported = True
        return self.on_loss[::-1]  # the with blocks first: a user's callback may raise
