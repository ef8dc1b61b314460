"""What the members and alarms of an etcd mean for locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caslock.cli.finding import danger, note, warning
from caslock.stores.etcd.failures import Failures
from caslock.stores.etcd.members import Members
from caslock.stores.etcd.target import target_of
from caslock.stores.etcd.wire import Call, Reply
from caslock.stores.shared.connections import run
from caslock.stores.shared.links import SocketLink

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from caslock.cli.finding import Finding

_ALARMS: Final = {
    "NOSPACE": ("it is full", "no lock can be acquired", "Compact and defragment it, then: etcdctl alarm disarm"),
    "CORRUPT": ("its members differ", "locks can be lost", "Replace the member with the alarm"),
}
_PAIR: Final = 2


def examine(url: str) -> Iterator[Finding]:
    """Ask a member; raises `StoreError` where none answers."""
    target = target_of(url, "", None)
    members = Members(target, Failures(target.location), SocketLink)
    try:
        listed, alarms = run(members.run(_facts()))
    finally:
        members.end()
    for alarm in {each["alarm"] for each in alarms.body.get("alarms", [])}:
        yield danger(*_ALARMS.get(alarm, (f"it has the alarm {alarm}", "locks may be impossible", "See etcd's log")))
    voting = [each for each in listed.body.get("members", []) if not each.get("isLearner")]
    named = len(target.endpoints)
    if len(voting) == 1:
        yield note("it has one member", "while that is down, no lock can be acquired")
    elif len(voting) == _PAIR:
        yield warning("it has two members", "without either of them, no lock can be acquired", "Add a third")
    if named < len(voting):
        means = "while those that it names are down, the others are not asked"
        yield note(f"the URL names {named} of {len(voting)} members", means, "Name all of them")
    if listed.refused or alarms.refused:
        yield note("members or alarms are not told to this user", "what they mean is not known")


def _facts() -> Generator[list[Call], list[Reply], list[Reply]]:
    return (yield [Call("/v3/cluster/member/list", {}), Call("/v3/maintenance/alarm", {"action": "GET"})])
