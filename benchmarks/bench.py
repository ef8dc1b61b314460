"""What every measure is given, and the order of measuring: candidates take turns, so that noise hits all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from benchmarks.children import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.candidate import AsyncCandidate, Candidate
    from benchmarks.effort import Effort
    from benchmarks.places import Places

C = TypeVar("C", bound="Candidate | AsyncCandidate")
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """What every measure is given."""

    places: Places
    candidates: Sequence[Candidate]
    async_candidates: Sequence[AsyncCandidate]
    effort: Effort
    tell: Callable[[str], None]  # reports progress


@dataclass
class Lane(Generic[C, T]):
    """One candidate's rounds, or the error that ended them."""

    candidate: C
    rounds: list[T]
    error: str = ""


def round_robin(bench: Bench, candidates: Sequence[C], rounds: int, act: Callable[[C], T]) -> list[Lane[C, T]]:
    """Run `act` on each candidate in turn, `rounds` times; a candidate that fails is not run again."""
    lanes = [Lane[C, T](candidate, [], bench.places.missing.get(candidate.place, "")) for candidate in candidates]
    for number in range(rounds):
        start = number % len(lanes) if lanes else 0
        for lane in lanes[start:] + lanes[:start]:  # no candidate is always the first
            if lane.error:
                continue
            bench.tell(f"round {number + 1} of {rounds}: {lane.candidate.name} at {lane.candidate.place}")
            try:
                lane.rounds.append(act(lane.candidate))
            except Failed as error:
                lane.error = str(error)
    return lanes
