"""The law of this file: a scene is small enough that a search gets through it, and shows one way to meet.

Two clients, then three: in processes of their own, in one process (which queue, and hand over), with one Lock object,
with one owner, with several keys; where the store wakes who waits, and where it does not.
"""

from __future__ import annotations

from typing import Final

from caslock.testing.simulate.plan import KEYS, ClientPlan, Plan, Round, Stay

FAULTS: Final = frozenset({"late", "slow", "refuse", "unsent", "woken for nothing", "cancel", "kill", "stall"})
"""The faults of a search; a late request that never lands is lost, one that lands at once has lost its reply."""

TTL: Final = 3.0

_ONE: Final = (Round(0.0, 5.0, (Stay(0.5),)),)
_EXTENDS: Final = (Round(0.0, 5.0, (Stay(0.5, extends=True),)),)
_SHORTER: Final = (Round(0.0, 5.0, (Stay(0.5, extends=True, ttl=1.0),)),)
_LONG: Final = (Round(0.0, 5.0, (Stay(1.2),)),)
_TWICE: Final = (Round(0.0, 5.0), Round(0.0, 5.0))
_TRIES: Final = (Round(0.2, 0.0),)
_BRIEF: Final = (Round(0.0, 0.0),)
_WAITS: Final = (Round(0.0, 2.0),)


def _client(
    name: str,
    process: int,
    rounds: tuple[Round, ...],
    *,
    lock: str = "",
    owner: str | None = None,
    keys: tuple[str, ...] = KEYS[:1],
    ttl: float = TTL,
) -> ClientPlan:
    return ClientPlan(name, process, lock or name, keys, ttl, owner, rounds)


def _scene(*clients: ClientPlan, threads: bool = False, waking: bool = False, batching: bool = False) -> Plan:
    processes = 1 + max(client.process for client in clients)
    return Plan(
        clients,
        (threads,) * processes,
        (1.0,) * processes,
        waking=waking,
        batching=batching,
        poll=1.0,
        faults=FAULTS,
    )


SCENES: Final = {
    "two tasks, briefly": _scene(_client("A", 0, _BRIEF), _client("B", 0, _WAITS)),
    "two processes": _scene(_client("A", 0, _TWICE), _client("B", 1, _ONE)),
    "two processes, extending": _scene(_client("A", 0, _EXTENDS), _client("B", 1, _SHORTER, ttl=1.5)),
    "two processes, waking": _scene(_client("A", 0, _TWICE), _client("B", 1, _ONE), waking=True),
    "two tasks": _scene(_client("A", 0, _TWICE), _client("B", 0, _ONE)),
    "two threads of one Lock": _scene(_client("A", 0, _LONG, lock="L"), _client("B", 0, _ONE, lock="L"), threads=True),
    "two processes of one owner": _scene(_client("A", 0, _LONG, owner="us"), _client("B", 1, _ONE, owner="us")),
    "two processes, two keys": _scene(
        _client("A", 0, _ONE, keys=KEYS), _client("B", 1, _ONE, keys=KEYS), batching=True
    ),
    "three processes": _scene(_client("A", 0, _ONE), _client("B", 1, _ONE), _client("C", 2, _TRIES)),
    "two tasks and a process": _scene(_client("A", 0, _ONE), _client("B", 0, _ONE), _client("C", 1, _ONE), waking=True),
    "two tasks and their owner": _scene(
        _client("A", 0, _ONE, owner="us"), _client("B", 0, _ONE), _client("C", 1, _ONE, owner="us")
    ),
}
