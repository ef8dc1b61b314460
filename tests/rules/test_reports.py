"""What is logged, and told to observers, of leases in the background: each in one case, and in no other."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest

from caslock.errors import StoreError, StoreUnavailable
from caslock.local import reports
from caslock.observer import LockEvent
from caslock.protocol.attempt import Attempt
from caslock.protocol.life import State
from tests.support.life import force
from tests.support.scripted import START, TTL, Scripted, held


class Said(NamedTuple):
    warnings: list[str]
    told: list[tuple[str, LockEvent]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Return what is said from now on; nothing was warned about lately."""
    said = Said([], [])
    monkeypatch.setattr(reports, "_warned", {})
    monkeypatch.setattr(reports, "warn", said.warnings.append)
    monkeypatch.setattr(reports, "tell", lambda *each: said.told.append(each))
    monkeypatch.setattr(reports, "listens", lambda: True)
    return said


def holder(clock: float = START) -> tuple[Scripted, Attempt]:
    """Return an attempt that has held the key since the start, and its runtime at that moment."""
    script = Scripted()
    attempt = held(script)
    script.clock = clock
    return script, attempt


def test_only_a_fence_of_a_store_that_has_fences_is_told() -> None:
    """And only once there is one."""
    script, attempt = holder()
    assert reports.event_of(attempt, 1.5, "why") == ("key", "me", "scripted://", 5, 1.5, "why")
    script.traits = script.traits._replace(fences=False)
    assert reports.event_of(attempt, 1.5).fence is None
    script.traits = script.traits._replace(fences=True)
    attempt.lease.fence = 0
    assert reports.event_of(attempt, 1.5).fence is None


def test_a_loss_says_where_once(said: Said) -> None:
    """Of one of several leases of a QuorumLock no observer is told: the lock is not lost by that."""
    _, attempt = holder(START + 12)
    attempt.lease.lost = "it expired"
    reports.warn_of_loss(attempt)
    attempt.lease.lost = "it is no longer at scripted://"
    reports.warn_of_loss(attempt)
    attempt.after_renewal = lambda: None
    reports.warn_of_loss(attempt)
    assert said.warnings == [
        "lock 'key' at scripted:// was lost: it expired",
        "lock 'key' was lost: it is no longer at scripted://",
        "one lease of lock 'key' was lost: it is no longer at scripted://",
    ]
    assert [(name, event.seconds, event.reason) for name, event in said.told] == [
        ("lost", 12, "it expired"),
        ("lost", 12, "it is no longer at scripted://"),
    ]


@pytest.mark.parametrize(("left", "warns"), [(TTL / 2 + 1, False), (TTL / 2, True), (TTL / 2 - 1, True), (1, True)])
def test_only_a_lease_that_was_not_renewed_meanwhile_is_late(said: Said, left: float, *, warns: bool) -> None:
    """More than half of it is left if it was."""
    _, attempt = holder()
    attempt.lease.deadline = START + left
    reports.warn_of_late_renewals([attempt])
    assert len(said.warnings) == warns
    assert all(f"ends in {left:.3g} s" in warning for warning in said.warnings)


def test_the_first_of_several_late_leases_is_named_every_ten_seconds(said: Said) -> None:
    """Not more often, however many are late."""
    script, first = holder()
    second = held(script, key="other")
    script.clock = START
    first.lease.deadline, second.lease.deadline = START + 9, START + 8
    for _ in range(2):
        reports.warn_of_late_renewals([first, second])
    script.clock += reports.QUIET - 0.125
    second.lease.deadline = script.clock + 1
    reports.warn_of_late_renewals([second])
    (warning,) = said.warnings
    assert warning == (
        "renewals at scripted:// are late: the lease of lock 'other' ends in 8 s. "
        "The store is slow or does not answer, or this process is overloaded."
    )
    second.after_renewal = lambda: None
    script.clock += 0.125
    reports.warn_of_late_renewals([second])
    assert said.warnings[1].startswith("renewals at scripted:// are late: one lease of lock 'other' ends in ")


def test_a_missing_vote_says_where_and_why(said: Said) -> None:
    """By the error that the store itself has raised."""
    script, attempt = holder()
    for cause, text in (
        (StoreUnavailable("no answer"), "scripted://: no answer"),
        (StoreError("scripted:// is full"), "scripted:// is full"),
        (ValueError("of the client"), "scripted://: could not acquire"),
        (None, "scripted://: could not acquire"),
    ):
        error = StoreError("could not acquire")
        error.__cause__ = cause
        reports.warn_of_missing_vote(attempt, error)
        assert said.warnings.pop().endswith(f"which needs only a majority of them: {text}")
        reports.warn_of_missing_vote(attempt, error)
        assert not said.warnings
        script.clock += reports.QUIET


def test_a_renewal_is_told_to_whoever_listens(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the seconds that are left; one of several leases tells its QuorumLock, and nobody else."""
    script, attempt = holder()
    report = partial(reports.report_renewals, [(attempt, attempt.lease.deadline, attempt.writes.count)])
    attempt.lease.deadline += 10
    attempt.writes.count += 1
    script.clock += 1
    report()
    ((name, event),) = said.told
    assert (name, event.seconds) == ("renewed", attempt.lease.deadline - script.clock)
    monkeypatch.setattr(reports, "listens", lambda: False)
    report()
    told: list[str] = []
    attempt.after_renewal = lambda: told.append("renewed")
    report()
    assert (told, len(said.told), said.warnings) == (["renewed"], 1, [])


def test_a_renewal_that_has_failed_is_told_and_logged(said: Said) -> None:
    """Logged every ten seconds; not if none was sent, nor if the hold has ended."""
    script, attempt = holder()
    report = partial(reports.report_renewals, [(attempt, attempt.lease.deadline, attempt.writes.count)])
    report()  # nothing was sent
    assert (len(said.warnings), len(said.told)) == (0, 0)
    attempt.writes.count += 1
    script.clock += 1
    left = attempt.lease.deadline - script.clock
    for _ in range(2):
        report()
    (warning,) = said.warnings
    assert warning.startswith("the lease of lock 'key' at scripted:// could not be renewed; ")
    assert warning.endswith(f"until it ends, in {left:.3g} s")
    assert [(name, event.seconds) for name, event in said.told] == [("renewal_failed", left)] * 2
    attempt.after_renewal = lambda: None
    report()
    script.clock += reports.QUIET
    attempt.lease.failure = "scripted:// is full"
    report()
    assert ([text.count("scripted://") for text in said.warnings], len(said.told)) == ([1, 1], 2)
    assert said.warnings[1].startswith("one lease of lock 'key' could not be renewed; ")
    assert said.warnings[1].endswith(" s: scripted:// is full")
    script.clock += reports.QUIET
    attempt.after_renewal = None
    attempt.state = State.LEAVING
    report()
    force(attempt, State.HELD)
    attempt.lease.lost = "as the test says"
    report()
    assert (len(said.warnings), len(said.told)) == (2, 2)
