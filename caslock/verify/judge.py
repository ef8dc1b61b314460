"""Checks the laws of a lock on a history, after the run.

Beliefs of different owners never overlap.  Fences grow in real time, one for each tenure.  No acquire reports failure
while its own hold id is recorded, and no hold id succeeds twice.  Every loss is told, one by `force_release` too.
Nothing is believed for longer than its `max_hold`.  No record lasts for longer than its lease when nobody has it.  No
update of the guarded counter is lost.  A write that the resource has refused as too late is counted, and
breaks no law: a lease is not a fence.

What is unknown counts in favour of the lock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

from caslock.protocol.shares import READS, WRITES
from caslock.protocol.writes import FREE_TTL
from caslock.verify.delays import Delays
from caslock.verify.history import Event
from caslock.verify.orphans import Orphans
from caslock.verify.plan import PAGE
from caslock.verify.tenures import Judgement, Tenure, Tenures, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from caslock.verify.tenures import Attempt

_READS, _WRITES = f"#{READS}", f"#{WRITES}"

_LAWS: Final = {
    "unreported": "unreported loss",
    "forever": "no ttl",
    "orphan": "orphaned record",
    "child": "fork",
    "hung": "hang",
    "cut": "history cut short",
}
"""The law that an event breaks by itself."""


class Law(Protocol):
    """A further law, which is made of the judgement so far and the delays so far."""

    def __init__(self, judgement: Judgement, delays: Delays) -> None:
        """Begin."""

    def read(self, event: Event) -> None:
        """Take note of an event; they come in the order of time."""

    def end(self) -> None:
        """Take note of the last event: now the tenures are compared, and may be told what excuses them."""


def judge(
    events: Iterable[Event],
    *,
    fences: bool = True,
    embedded: bool = False,
    laws: Sequence[type[Law]] = (),
) -> Judgement:
    """Check a history; the events may come in any order.

    `fences` is the store's trait: where it is False, the laws of fences are left out.  `embedded`: the store has no
    server, and runs in the workers.  `laws` are further laws.
    """
    events = sorted(events)
    judgement, delays = Judgement(), Delays(embedded=embedded)
    tenures, orphans, rest = Tenures(judgement), Orphans(judgement, delays, events), _Rest(judgement)
    further = [law(judgement, delays) for law in laws]
    for event in events:
        delays.read(event)
        tenures.read(event)
        orphans.read(event)
        rest.read(event)
        for law in further:
            law.read(event)
    by_key = defaultdict[str, list[Tenure]](list)
    for tenure in sorted(judgement.tenures, key=attrgetter("got")):
        tenure.close(math.inf)
        by_key[tenure.key].append(tenure)
    for law in further:
        law.end()
    reads = {key: key.removesuffix(_READS) + _WRITES for key in by_key if PAGE in key and key.endswith(_READS)}
    for key, all_of_it in list(by_key.items()):
        believed = [tenure for tenure in all_of_it if tenure.end > tenure.got]
        if key in reads:
            _beside_writers(believed, by_key[reads[key]], judgement)
            continue
        _overlaps(believed, judgement)
        if fences:
            _fences(believed, judgement)
        _losses(all_of_it, judgement, tenures.attempts[whole(key)], fences=fences)
    _failures(events, judgement)
    judgement.violations.sort(key=attrgetter("at"))
    return judgement


class _Rest:
    """Counts, finds what breaks a law by itself, and checks the guarded counters."""

    def __init__(self, judgement: Judgement) -> None:
        self._judgement = judgement
        self._tallies = dict[str, int]()
        self._counters = defaultdict[str, Counter[str]](Counter)

    def read(self, event: Event) -> None:
        judgement, counter = self._judgement, self._counters[event.key]
        judgement.counts[event.what] += 1
        match event.what:
            case "fault":
                judgement.faults[event.note] += 1
            case "tally":
                self._tallies[event.who] = event.fence
                judgement.requests = sum(self._tallies.values())
            case "adding" | "added":
                counter[event.what] += 1
            case "late" if event.note:
                judgement.counts["late writes"] += 1
                counter["late"] += 1
            case "counter":
                most = counter["adding"] - counter["late"]
                if not counter["added"] <= event.fence <= most:
                    text = f"the counter is {event.fence}, after {counter['added']} to {most} accepted increments"
                    judgement.violate("lost update", event.at, event.key, text)
            case what if what in _LAWS and event.note != "inert":  # as a forked child's copy should be
                judgement.violate(_LAWS[what], event.at, event.key, f"{event.hold} {event.note}".strip())


def _overlaps(tenures: list[Tenure], judgement: Judgement) -> None:
    """Sweep: a tenure that begins before another owner's latest end overlaps with it."""
    ends = list[Tenure]()  # the latest ends of two different owners, the later one first
    for tenure in tenures:
        other = next((end for end in ends if end.owner != tenure.owner), None)
        judgement.counts["shortened"] += other is not None and other.sure <= tenure.got < other.end
        if other is not None and tenure.got < other.sure:
            judgement.violate(
                "overlap", tenure.got, tenure.key,
                f"{tenure.who} believed in fence {tenure.fence} from {tenure.got:.4f}, "
                f"{other.who} in fence {other.fence} from {other.got:.4f} until {other.end:.4f}",
            )  # fmt: skip
        same = next((end for end in ends if end.owner == tenure.owner), None)
        if same is not None and tenure.shared and tenure.got < same.sure and tenure.fence != same.fence:
            judgement.violate(
                "two fences", tenure.got, tenure.key,
                f"{tenure.who} got fence {tenure.fence} at {tenure.got:.4f}, while {same.who} believed in fence "
                f"{same.fence} of the same owner until {same.end:.4f}",
            )  # fmt: skip
        if same is None or same.sure < tenure.sure:
            ends = sorted([*(end for end in ends if end is not same), tenure], key=lambda t: -t.sure)[:2]


def _beside_writers(readers: list[Tenure], writers: list[Tenure], judgement: Judgement) -> None:
    """Nobody reads while somebody writes; many may read at a time."""
    for reader in readers:
        for writer in writers:
            if max(reader.got, writer.got) < min(reader.sure, writer.sure):
                judgement.violate(
                    "overlap", max(reader.got, writer.got), reader.key,
                    f"{reader.who} believed it was reading from {reader.got:.4f} until {reader.end:.4f}, "
                    f"while {writer.who} believed it was writing from {writer.got:.4f} until {writer.end:.4f}",
                )  # fmt: skip


def _fences(tenures: list[Tenure], judgement: Judgement) -> None:
    """Each fence is larger than all before; it may come again in one tenure of an owner of several holds only."""
    last: Tenure | None = None
    for tenure in tenures:
        if last is not None and tenure.fence < last.fence:
            text = f"{tenure.who} got fence {tenure.fence} at {tenure.got:.4f}, after {last.who} had {last.fence}"
            judgement.violate("fence inversion", tenure.got, tenure.key, text)
        elif last is not None and tenure.fence == last.fence and (tenure.owner != last.owner or not tenure.shared):
            text = f"{last.hold} and {tenure.hold} have fence {tenure.fence}"
            judgement.violate("fence twice", tenure.got, tenure.key, text)
        if last is None or tenure.fence >= last.fence:
            last = tenure


def _losses(tenures: list[Tenure], judgement: Judgement, attempts: list[Attempt], *, fences: bool) -> None:
    """A hold that was taken away, or followed by another before its release, is not released without LockLost.

    Unless the lease of one that followed has simply ended: where there is no record, nothing tells of a loss.  After a
    `force_release` its own lease may last longer than what came after, so all that may have come must be known.
    """
    for number, tenure in enumerate(tenures):
        if tenure.left != "ok" or tenure.forgotten or tenure.reported:
            continue
        successors = [
            later
            for later in islice(tenures, number + 1, bisect_left(tenures, tenure.leave, key=attrgetter("got")))
            if later.owner != tenure.owner and later.end > later.got
            # Its tenure began later for certain; without fences: it was not even asked for before.
            and (later.fence > tenure.fence if fences else later.tried > tenure.got)
        ]  # fmt: skip
        if tenure.shortened and successors:
            first, last = successors[0], successors[-1]
            if first.got >= tenure.sure and last.leave <= tenure.leave:
                continue  # nothing tells of a lease that ended too early, once there is no record any more
        known = all(_tells(successor, tenure.leave) for successor in successors)
        if not known or not (successors or tenure.gone < tenure.leave):
            continue
        if tenure.forced < tenure.over and not _certain(tenure, successors, attempts):
            continue
        why = f"it was taken away at {tenure.gone:.4f}"
        if successors:
            why = f"{successors[0].who} had {successors[0].fence}"
        text = f"{tenure.who} released fence {tenure.fence} without LockLost, though {why}"
        judgement.violate("unreported loss", tenure.leave, tenure.key, text)


def _tells(successor: Tenure, at: float) -> bool:
    """Whether its record told others of it at the moment `at`, or it had left in time before."""
    if successor.leave > at:
        return successor.until > at
    return successor.leave <= successor.until and successor.left in ("ok", "blind")


def _certain(tenure: Tenure, successors: list[Tenure], attempts: list[Attempt]) -> bool:
    """Whether there was a record of another for certain when a hold that had been taken away was released.

    A `force_release` leaves a free record for `FREE_TTL`, which only a lease that ended in its place can have taken
    away: so nobody else may have tried since, unless it held, and its record was there or it left in time.
    """
    known = {tenure.hold}
    for successor in successors:
        stays, over = successor.over > tenure.over, min(successor.over, tenure.over)
        if successor.until > over and (stays or successor.left == "ok"):  # its lease has not ended in its place
            known.add(successor.hold)
    return tenure.over < tenure.forced + FREE_TTL and all(
        attempt.hold in known
        for attempt in attempts
        if attempt.began < tenure.over and attempt.ended >= tenure.forced
    )  # fmt: skip


def _failures(events: Iterable[Event], judgement: Judgement) -> None:
    """An acquire that has failed for certain must not be recorded, unless the network has sent it once more since."""
    doubled, late, recorded = set[str](), set[str](), list[Event]()
    for event in events:
        if event.what == "stands":
            recorded.append(event)
        elif event.what == "fault" and event.note in ("duplicate", "hold request"):
            (doubled if event.note == "duplicate" else late).update(event.hold.split())
    for event in recorded:
        if event.hold not in doubled and (event.fence or event.hold not in late):
            text = f"{event.hold} has failed, and is recorded: {event.note}"
            judgement.violate("false failure", event.at, event.key, text)
