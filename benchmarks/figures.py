"""Computes figures from what was recorded."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Section(NamedTuple):
    """One critical section, as its worker saw it, in nanoseconds of CLOCK_MONOTONIC, which all processes share."""

    worker: int
    asked: int  # before acquire was called
    got: int  # after it returned
    left: int  # before release was called


class Fairness(NamedTuple):
    """How the lock was shared among the workers."""

    handed_on: float  # share of the sections that went to another worker than the one before
    handover_ms: tuple[float, float]  # p50 and p99, from the start of a release to another worker's acquire's return
    jain: float
    longest_wait_ms: float


def percentile(values: Iterable[float], part: float) -> float:
    """Give the smallest of `values` that at least `part` of them do not exceed (nearest rank); NaN of none."""
    ranked = sorted(values)
    if not ranked:
        return math.nan
    return ranked[max(0, math.ceil(part * len(ranked)) - 1)]


def jain(shares: Sequence[float]) -> float:
    """Give Jain's index: 1 if all have the same, 1/n if one has all.

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness, DEC-TR-301, 1984.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else math.nan


def overlaps(sections: Iterable[Section]) -> int:
    """Count the sections that began while another worker was still in one.

    `got` is read after acquire and `left` before release, so a section counts as shorter than it was, and what
    overlaps here did overlap.
    """
    found = 0
    last: Section | None = None  # of those before, the one that ends last
    for section in sorted(sections, key=lambda section: section.got):
        if last is not None and section.got < last.left and section.worker != last.worker:
            found += 1
        if last is None or section.left > last.left:
            last = section
    return found


def fairness(sections: Iterable[Section], workers: int, waiting_since: Iterable[int], end: int) -> Fairness:
    """Compute how the lock was shared; a worker that waits at the `end` has waited since it asked."""
    ordered = sorted(sections, key=lambda section: section.got)
    changes = list(pairwise(ordered))
    handed = [after.got - before.left for before, after in changes if after.worker != before.worker]
    counts = [0] * workers
    for section in ordered:
        counts[section.worker] += 1
    waits = [section.got - section.asked for section in ordered] + [end - since for since in waiting_since]
    return Fairness(
        len(handed) / len(changes) if changes else math.nan,
        (percentile(handed, 0.5) / 1e6, percentile(handed, 0.99) / 1e6),
        jain(counts),
        max(waits, default=0) / 1e6,
    )
