"""The scenes of the exhaustive search: each is small enough to be searched, and shows one way in which clients meet.

Two clients, then three: in processes of their own, in one process (where they queue, and hand over), with one Lock
object, with one owner, with several keys; with a store that wakes waiters, and with one that does not.
"""

from __future__ import annotations

from typing import Final

from tests.proof.simulator.plan import KEYS, ClientPlan, Plan, Round, Stay

FAULTS: Final = frozenset({"late", "slow", "refuse", "unsent", "woken for nothing", "cancel", "kill", "stall"})
"""The faults of a search; a late request that never lands is lost, one that lands at once has lost its reply."""

RACES: Final = frozenset({"race", "cancel", "late"})
"""The faults of a search where threads race at every line."""

FULL: Final = frozenset({"full", "late"})
"""The faults of a search where the store has no memory."""

TTL: Final = 3.0

_ONE: Final = (Round(0.0, 5.0, (Stay(0.5),)),)
_EXTENDS: Final = (Round(0.0, 5.0, (Stay(0.5, "extend"),)),)
_SHORTER: Final = (Round(0.0, 5.0, (Stay(0.5, "extend", 1.0), Stay(1.5))),)
_ASIDE: Final = (Round(0.0, 5.0, (Stay(0.0, "extend aside"),)),)
_AGAIN: Final = (Round(0.0, 5.0, (Stay(0.0, "enter elsewhere"), Stay(0.0, "enter"), Stay(0.0, "leave"), Stay(0.1))),)
_BREAKS: Final = (Round(0.2, 0.0, breaks=True), Round(0.0, 5.0))
_SOON: Final = (Round(0.0, 5.0, (Stay(0.2),)), Round(0.0, 5.0, (Stay(0.2),)))
_LONG: Final = (Round(0.0, 5.0, (Stay(1.2),)),)
_TWICE: Final = (Round(0.0, 5.0), Round(0.0, 5.0))
_TRIES: Final = (Round(0.2, 0.0),)
_BRIEF: Final = (Round(0.0, 0.0),)
_BRIEF_WAIT: Final = (Round(0.0, 5.0),)
_WANTS: Final = (Round(0.0, None),)
_SHORT: Final = (Round(0.0, None, (Stay(0.02),)),)
_WAITS: Final = (Round(0.0, 2.0),)
_WAITS_LONG: Final = (Round(0.0, 4.5),)
_HANDS_OVER: Final = (Round(0.0, 5.0, (Stay(0.0, "hand over"),)),)
_ADOPTS: Final = (Round(0.0, 4.0, (Stay(1.2),), adopts=True),)
_ADOPTS_BRIEFLY: Final = (Round(0.0, 4.0, adopts=True),)
_VERY_LONG: Final = (Round(0.0, 5.0, (Stay(6.0),)),)


def _client(
    name: str, process: int, rounds: tuple[Round, ...], *, lock: str = "", once: bool = False, **settings: object
) -> ClientPlan:
    """Plan a client of one key; `once`: it repeats and renews nothing."""
    retry = (0, 0) if once else (1, 1)
    plan = ClientPlan(name, process, lock or name, KEYS[:1], TTL, None, rounds, retry, auto_renew=not once)
    return plan._replace(**settings)  # type: ignore[arg-type] # fields of a plan


def _scene(*clients: ClientPlan, threads: bool = False, **settings: object) -> Plan:
    processes = 1 + max(client.process for client in clients)
    plan = Plan(clients, (threads,) * processes, (1.0,) * processes, queueing=False, batching=False)
    return plan._replace(**{"poll": 1.0, "faults": FAULTS, **settings})  # type: ignore[arg-type] # as above


SCENES: Final = {
    "two tasks, briefly": _scene(_client("A", 0, _BRIEF), _client("B", 0, _WAITS)),
    "two processes": _scene(_client("A", 0, _TWICE), _client("B", 1, _ONE)),
    "two processes, extending": _scene(_client("A", 0, _EXTENDS), _client("B", 1, _SHORTER, once=True)),
    "two processes, breaking": _scene(_client("A", 0, _SOON), _client("B", 1, _BREAKS)),
    "two processes, keeping": _scene(_client("A", 0, _TWICE, min_hold=1.0), _client("B", 1, _ONE, min_hold=4.0)),
    "two tasks, keeping": _scene(_client("A", 0, _TWICE, min_hold=1.0), _client("B", 0, _ONE), queueing=True),
    "two tasks, lingering": _scene(_client("A", 0, _TWICE, linger=0.5), _client("B", 0, _ONE)),
    "two tasks of one Lock, lingering": _scene(
        _client("A", 0, _TWICE, lock="L", linger=0.5), _client("B", 0, _SOON, lock="L", linger=0.5)
    ),
    "two processes, lingering": _scene(_client("A", 0, _SOON, linger=0.5), _client("B", 1, _ONE), queueing=True),
    "two threads, lingering, racing": _scene(
        _client("A", 0, _BRIEF, lock="L", linger=0.5),
        _client("B", 0, _BRIEF_WAIT, lock="L", linger=0.5),
        _client("C", 0, _BRIEF_WAIT),
        threads=True,
        faults=RACES,
    ),
    "two processes, waking": _scene(_client("A", 0, _TWICE), _client("B", 1, _ONE), queueing=True),
    "two processes, observing": _scene(_client("A", 0, _TWICE), _client("B", 1, _ONE), expires=False),
    "three processes, observing": _scene(
        _client("A", 0, _ONE, once=True), _client("B", 1, _ONE), _client("C", 2, _ONE), expires=False
    ),
    "two tasks": _scene(_client("A", 0, _TWICE), _client("B", 0, _ONE)),
    "two threads of one Lock": _scene(_client("A", 0, _LONG, lock="L"), _client("B", 0, _ONE, lock="L"), threads=True),
    "two tasks, extending aside": _scene(
        _client("A", 0, _ASIDE), _client("B", 0, _BRIEF_WAIT), faults=FAULTS | {"abandon"}
    ),
    "two threads, racing": _scene(_client("A", 0, _BRIEF), _client("B", 0, _BRIEF_WAIT), threads=True, faults=RACES),
    "two threads of one Lock, racing": _scene(
        _client("A", 0, _BRIEF, lock="L"), _client("B", 0, _BRIEF_WAIT, lock="L"), threads=True, faults=RACES
    ),
    "two of one owner, again": _scene(_client("A", 0, _AGAIN, owner="us"), _client("B", 1, _BRIEF_WAIT, owner="us")),
    "three tasks of two Locks": _scene(
        _client("A", 0, _BRIEF, lock="L"), _client("B", 0, _BRIEF_WAIT), _client("C", 0, _BRIEF_WAIT, lock="L")
    ),
    "three tasks of one owner": _scene(
        _client("A", 0, _BRIEF, owner="us"),
        _client("B", 0, _BRIEF_WAIT, lock="L", owner="us"),
        _client("C", 0, _BRIEF_WAIT, lock="L", owner="us"),
    ),
    "two processes of one owner": _scene(_client("A", 0, _LONG, owner="us"), _client("B", 1, _ONE, owner="us")),
    "two processes, two keys": _scene(
        _client("A", 0, _ONE, keys=KEYS), _client("B", 1, _ONE, keys=KEYS), batching=True
    ),
    "two keys of a full store": _scene(
        _client("A", 0, _WAITS_LONG, keys=KEYS), _client("B", 1, _VERY_LONG, keys=KEYS[1:]), faults=FULL
    ),
    "MultiLocks and a Lock, handed over": _scene(
        _client("A", 0, _WANTS, keys=("k", "l")),
        _client("B", 1, _SHORT, keys=("l",)),
        _client("C", 1, _WANTS, keys=("k", "l")),
        batching=True,
    ),
    "MultiLocks and a Lock of two processes": _scene(
        _client("A", 0, _WANTS, keys=("k", "l")),
        _client("B", 1, _SHORT, keys=("l",)),
        _client("C", 1, _WANTS, keys=("k", "m")),
        _client("D", 1, _WANTS, keys=("l", "m")),
        batching=True,
    ),
    "MultiLocks and Locks of two processes, waking": _scene(
        _client("A", 0, _SHORT, keys=("k",)),
        _client("B", 0, _WANTS, keys=("l", "m")),
        _client("C", 0, _WANTS, keys=("k", "m")),
        _client("D", 1, _SHORT, keys=("l",)),
        _client("E", 1, _WANTS, keys=("k", "n")),
        _client("F", 1, _WANTS, keys=("l", "n")),
        queueing=True,
        batching=True,
    ),
    "MultiLocks of a key that lingers": _scene(
        _client("A", 0, _BRIEF, keys=("l",), lock="L", linger=0.5),
        _client("B", 0, _WANTS, keys=("k", "l"), lock="L"),
        _client("C", 1, _WANTS, keys=("k", "l")),
        batching=True,
    ),
    "two processes, handing over": _scene(_client("A", 0, _HANDS_OVER + _BRIEF_WAIT), _client("B", 1, _ADOPTS)),
    "two tasks, handing over": _scene(_client("A", 0, _HANDS_OVER + _BRIEF_WAIT), _client("B", 0, _ADOPTS_BRIEFLY)),
    "three processes, one ticket": _scene(
        _client("A", 0, _HANDS_OVER), _client("B", 1, _ADOPTS_BRIEFLY), _client("C", 2, _ADOPTS_BRIEFLY)
    ),
    "three processes, handing over": _scene(
        _client("A", 0, _HANDS_OVER, owner="us"), _client("B", 1, _ADOPTS), _client("C", 2, _ONE, owner="us")
    ),
    "three processes": _scene(_client("A", 0, _ONE), _client("B", 1, _ONE), _client("C", 2, _TRIES)),
    "two tasks and a process": _scene(
        _client("A", 0, _ONE), _client("B", 0, _ONE), _client("C", 1, _ONE), queueing=True
    ),
    "two tasks and their owner": _scene(
        _client("A", 0, _ONE, owner="us"), _client("B", 0, _ONE), _client("C", 1, _ONE, owner="us")
    ),
}
