"""The law of this file: the laws of a lock are checked offline, by sorting and one sweep, and what is unknown stays so.

Beliefs of different owners never overlap.  Fences grow in real time, one for each tenure.  No acquire reports failure
while its own hold id stands, and no hold id succeeds twice.  Every loss is told, that by `break_` too, and nothing is
believed for longer than its `max_hold`.  No record stands for ever, nor longer than a lease when nobody has it.  A late
write that the resource has refused is counted, and breaks no law: a lease is not a fence.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from caslock.claim import FREE_TTL
from caslock.testing.torture.attempts import attempts
from caslock.testing.torture.standing import ghosts
from caslock.testing.torture.tenures import Judgement, Reader, Tenure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.testing.torture.attempts import Attempt
    from caslock.testing.torture.history import Event


def judge(events: Iterable[Event]) -> Judgement:
    """Check a history; the events may come in any order."""
    events = sorted(events)
    found = Judgement()
    Reader(found).read(events)
    by_key = defaultdict[str, list[Tenure]](list)
    for tenure in found.tenures:
        tenure.close(math.inf)
        by_key[tenure.key].append(tenure)
    tried = attempts(events)
    for key, tenures in by_key.items():
        _overlaps(tenures, found)
        _fences(tenures, found)
        _losses(tenures, found, tried[key])
    ghosts(events, found)
    _failures(events, found)
    _counters(events, found)
    _hand_overs(events, found)
    found.violations.sort(key=lambda violation: violation.at)
    return found


def _overlaps(tenures: list[Tenure], found: Judgement) -> None:
    """Sweep: whoever begins before another owner's latest end overlaps with it."""
    ends = list[Tenure]()  # the latest ends of two different owners, the later one first
    for tenure in sorted(tenures, key=lambda tenure: tenure.got):
        if tenure.end <= tenure.got:
            found.counts["came too late"] += 1
            continue
        other = next((end for end in ends if end.owner != tenure.owner), None)
        if other is not None and tenure.got < other.end:
            found.break_(
                "overlap", tenure.got, tenure.key,
                f"{tenure.who} believed in fence {tenure.fence} from {tenure.got:.4f}, "
                f"{other.who} in fence {other.fence} from {other.got:.4f} until {other.end:.4f}",
            )  # fmt: skip
        same = next((end for end in ends if end.owner == tenure.owner), None)
        if same is not None and tenure.shared and tenure.got < same.end and tenure.fence != same.fence:
            found.break_(
                "two fences", tenure.got, tenure.key,
                f"{tenure.who} got fence {tenure.fence} at {tenure.got:.4f}, while {same.who} believed in fence "
                f"{same.fence} of the same owner until {same.end:.4f}",
            )  # fmt: skip
        if same is None or same.end < tenure.end:
            ends = sorted([*(end for end in ends if end is not same), tenure], key=lambda t: -t.end)[:2]


def _fences(tenures: list[Tenure], found: Judgement) -> None:
    """Each fence is larger than all before; it may come again in one tenure of an owner of several holds only."""
    last: Tenure | None = None
    for tenure in sorted(tenures, key=lambda tenure: tenure.got):
        if tenure.end <= tenure.got:
            continue
        if last is not None and tenure.fence < last.fence:
            found.break_(
                "fence inversion", tenure.got, tenure.key,
                f"{tenure.who} got fence {tenure.fence} at {tenure.got:.4f}, after {last.who} had {last.fence}",
            )  # fmt: skip
        elif last is not None and tenure.fence == last.fence and (tenure.owner != last.owner or not tenure.shared):
            found.break_(
                "fence twice", tenure.got, tenure.key, f"{last.hold} and {tenure.hold} have fence {tenure.fence}"
            )
        if last is None or tenure.fence >= last.fence:
            last = tenure


def _losses(tenures: list[Tenure], found: Judgement, tried: list[Attempt]) -> None:
    """Who was broken, or followed by another before it let go, can't have let go in peace.

    Unless the lease of one that followed has simply ended: where nothing stands, nothing tells of a loss.  After a
    break its own lease may last longer than what came after, so all that may have come must be known.
    """
    tenures = sorted(tenures, key=lambda tenure: tenure.got)
    for number, tenure in enumerate(tenures):
        if tenure.left != "ok" or tenure.forgotten or tenure.told:
            continue
        after = islice(tenures, number + 1, bisect_left(tenures, tenure.leave, key=attrgetter("got")))
        others = [heir for heir in after if heir.owner != tenure.owner and heir.fence > tenure.fence]
        heirs = [heir for heir in others if heir.end > heir.got]
        if (heirs or tenure.gone < tenure.leave) and all(_in_order(heir, tenure.leave) for heir in heirs):
            if tenure.struck < tenure.over and not _certain(tenure, heirs, tried):
                continue
            why = f"{heirs[0].who} had {heirs[0].fence}" if heirs else f"it was broken at {tenure.gone:.4f}"
            text = f"{tenure.who} released fence {tenure.fence} in peace, though {why}"
            found.break_("untold loss", tenure.leave, tenure.key, text)


def _in_order(heir: Tenure, at: float) -> bool:
    """Whether it stood at the moment `at`, or had left in time before."""
    return heir.until > at if heir.leave > at else heir.leave <= heir.until and heir.left in ("ok", "blind")


def _certain(tenure: Tenure, heirs: list[Tenure], tried: list[Attempt]) -> bool:
    """Whether something of another certainly stood when a hold that was broken was released.

    A break leaves a free record for `FREE_TTL`, which only a lease that ended in its place can have taken away: so
    nobody else may have tried since, unless it held, and stood there or left in time.
    """
    known = {tenure.hold, *(heir.hold for heir in heirs if _stood(heir, tenure.over))}
    return tenure.over < tenure.struck + FREE_TTL and all(
        attempt.hold in known for attempt in tried if attempt.began < tenure.over and attempt.ended >= tenure.struck
    )


def _stood(heir: Tenure, at: float) -> bool:
    """Whether its lease has certainly not ended in its place before the moment `at`."""
    return heir.until > min(heir.over, at) and (heir.over > at or heir.left == "ok")


def _failures(events: list[Event], found: Judgement) -> None:
    """An acquire that has failed for certain must not stand, unless the network has sent it once more since."""
    doubled, late = set[str](), set[str]()
    for event in events:
        if event.what == "fault" and event.note in ("duplicate", "hold request"):
            (doubled if event.note == "duplicate" else late).update(event.hold.split())
    for event in events:
        if event.what == "stands" and event.hold not in doubled and (event.fence or event.hold not in late):
            found.break_("false failure", event.at, event.key, f"{event.hold} has failed, and stands: {event.note}")


def _counters(events: list[Event], found: Judgement) -> None:
    counts = defaultdict[str, Counter[str]](Counter)
    for event in events:
        if event.what in ("adding", "added") or (event.what == "late" and event.note):
            counts[event.key][event.what] += 1
        found.counts["late writes"] += event.what == "late" and bool(event.note)
    for event in events:
        if event.what == "counter":
            count = counts[event.key]
            most = count["adding"] - count["late"]
            if not count["added"] <= event.fence <= most:
                text = f"the counter is {event.fence}, after {count['added']} to {most} accepted increments"
                found.break_("lost update", event.at, event.key, text)


def _hand_overs(events: list[Event], found: Judgement) -> None:
    """Measure from a release to the next acquire that has waited for it."""
    asked = dict[tuple[str, str], float]()
    freed = dict[str, float]()
    tallies = dict[str, int]()
    for event in events:
        if event.what == "try":
            asked[event.who, event.key] = event.at
        elif event.what == "leave":
            freed[event.key] = event.at
        elif event.what == "got":
            at = freed.pop(event.key, None)
            if at is not None and asked.get((event.who, event.key), at) < at:
                found.hand_overs.append(event.at - at)
        elif event.what == "tally":
            tallies[event.who] = max(event.fence, tallies.get(event.who, 0))
    found.requests = sum(tallies.values())
