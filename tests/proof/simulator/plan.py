"""The plan of a run: everything but the order of its steps and their faults, drawn beforehand.

A run that fails can therefore be shortened: by taking clients and rounds out of its plan, and steps out of the run.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tests.proof.simulator.waits import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS: Final = ("k", "l")

CROWD_KEYS: Final = ("k", "l", "m", "n")
"""Those of a crowd."""

FAULTS: Final = frozenset({
    "lose", "lose reply", "late", "twice", "slow", "refuse", "unsent",  # of a request
    "woken for nothing",  # of one that waits at the store
    "cancel", "race", "abandon", "kill", "stop", "stall", "restart", "full", "forget",
})  # fmt: skip
"""All that may go wrong.

A request is lost, or its reply, or it is applied later (any later step within `PACKET_LIFE`), or twice, or its reply is
slow; it is refused, or never leaves.  A program is cancelled (a thread: interrupted) at an await, and again as it waits
for the clean-up after that; between two lines of a thread another one takes a step (``race``).  The event loop of a
client is closed and its coroutines with it (``abandon``); a process is killed, or stopped for a while; time passes
although something could happen (``stall``).  The store drops all connections (``restart``), refuses every put for a
while, for want of memory (``full``), or drops all entries (``forget``).
"""

_UNANSWERED: Final = ("lose", "lose reply", "late", "slow")

KEEPING: Final = 1 / 6
"""Share of the seeds in which somebody has a `min_hold`."""

LASTING: Final = 1 / 6
"""Share of the seeds in which the store does not end leases by itself."""

HANDING: Final = 1 / 6
"""Share of the seeds in which holds are handed over."""

CROWDED: Final = 5
"""Every so many seeds there is a crowd."""

PACKET_LIFE: Final = 20.0
"""Seconds after which a late request is lost: well below `FREE_TTL`, even for a clock that runs twice as fast."""


Deed = Literal["", "extend", "extend aside", "enter", "enter elsewhere", "leave", "break", "hand over", "downgrade"]

DOES: Final[tuple[Sequence[Deed], ...]] = (
    ("", "", "extend"),
    ("", "extend", "extend aside"),
    ("", "enter", "enter elsewhere", "leave", "extend", "break"),
)
"""What is done while a key is held: a plan has one of these."""


class Stay(NamedTuple):
    """A part of the time for which a key is held: seconds, and what is done then."""

    seconds: float
    does: Deed = ""
    """Extend what was entered last, and go on meanwhile (aside); enter the same Lock once more or (elsewhere) another
    one of the same owner; release what was entered so; call `force_release`; or hand the hold over, which ends the
    round."""
    ttl: float | None = None
    """Of an extension."""


class Round(NamedTuple):
    """One acquire (or `force_release`, or adoption of the newest ticket): the pause before, the wait, its use."""

    pause: float
    timeout: float | None
    body: tuple[Stay, ...] = ()
    breaks: bool = False
    adopts: bool = False


class ClientPlan(NamedTuple):
    """A thread or task: its process, its Lock and what it does with it."""

    name: str
    process: int
    lock: str
    """The name of the Lock object: clients of one process may share one."""
    keys: tuple[str, ...]
    ttl: float
    owner: str | None
    rounds: tuple[Round, ...]
    retry: tuple[int, int] = (1, 1)
    auto_renew: bool = True
    max_hold: float | None = None
    min_hold: float | None = None
    linger: float | None = None


class Plan(NamedTuple):
    """A run before its first step."""

    clients: tuple[ClientPlan, ...]
    threads: tuple[bool, ...]
    """By process: whether its clients are threads, which an interrupt strikes anywhere; else tasks."""
    rates: tuple[float, ...]
    """By process: how fast its clock runs, to the store's."""
    queueing: bool = True
    watching: bool = False
    batching: bool = True
    expires: bool = True
    """Whether the store ends leases by itself."""
    early: float = 0.0
    """Share of a holder's margin by which the store ends a lease too early."""
    poll: float | None = None
    """Seconds between two tries; None: the default, jittered by the seed."""
    seed: int = 0
    share: float = 0.0
    """Share of the steps at which something goes wrong."""
    faults: frozenset[str] = FAULTS

    @property
    def trusts_clocks(self) -> bool:
        """Whether the margin of a lease (1 % + 2 ms) covers the rates: only then do beliefs promise anything."""
        return all(abs(rate - 1) <= 0.005 for rate in self.rates)


def drawn(seed: int) -> Plan:
    """Draw a plan: 2 to 4 clients in 1 to 4 processes, 2 to 5 rounds each; every fifth seed is a crowd.

    In every sixth plan but crowds, some Lock objects have a `min_hold`; it is waited for with few steps.  In every
    sixth, if clocks can be trusted, the store does not end leases by itself.  In every sixth, holds are handed over.
    """
    plan = _drawn(seed)
    if plan.trusts_clocks and random.Random(f"expires {seed}").random() < LASTING:
        # A lease is over for whoever has seen it for its ttl, by a clock that may be faster than the store's.
        plan = plan._replace(expires=False, early=max(plan.early, 0.5))
    plan = handing(_lingering(plan, random.Random(f"linger {seed}")), random.Random(f"hand over {seed}"))
    chance = random.Random(f"min_hold {seed}")
    if chance.random() > KEEPING or seed % CROWDED == CROWDED - 1:
        return plan
    kept = {client.lock: chance.choice((None, 0.4, 2.0, 4.0, 12.0)) for client in plan.clients}
    clients = [
        client
        if client.owner or client.linger or (client.max_hold or NEVER) < (kept[client.lock] or 0.0)
        else client._replace(min_hold=kept[client.lock])
        for client in plan.clients
    ]
    return plan._replace(clients=tuple(clients), watching=False, poll=1.5)


def _lingering(plan: Plan, chance: random.Random) -> Plan:
    """Have the keys of some Lock objects linger, in one plan of six."""
    if chance.random() > KEEPING:
        return plan
    lingers = {client.lock: chance.choice((None, 0.05, 0.4, 2.0, 12.0)) for client in plan.clients}
    clients = (client if client.owner else client._replace(linger=lingers[client.lock]) for client in plan.clients)
    return plan._replace(clients=tuple(clients))


def handing(plan: Plan, chance: random.Random) -> Plan:
    """Have some rounds end with a hand-over, and others begin with an adoption, in one plan of six."""
    if chance.random() > HANDING:
        return plan
    clients = (
        client._replace(rounds=tuple(_handed(round_, client, chance) for round_ in client.rounds))
        for client in plan.clients
    )
    return plan._replace(clients=tuple(clients))


def _handed(round_: Round, client: ClientPlan, chance: random.Random) -> Round:
    kind = chance.random()
    if round_.breaks or kind < 0.2:
        return round_
    if kind < 0.5:
        # Nothing re-enters what was adopted: with its own Lock, a client would wait for itself.
        body = tuple(stay._replace(does="") if stay.does.startswith("enter") else stay for stay in round_.body)
        round_ = round_._replace(adopts=True, timeout=chance.choice((0.5, 5.0, 40.0)), body=body)
    if len(client.keys) > 1 and not round_.adopts:
        return round_
    pause = chance.choice((0.0, 0.02, client.ttl / 3))
    return round_._replace(body=(*round_.body, Stay(pause, "hand over"))) if chance.random() < 0.6 else round_


def _drawn(seed: int) -> Plan:
    chance = random.Random(seed)
    if seed % CROWDED == CROWDED - 1:
        return _crowd(chance, seed)
    count = chance.choice((2, 2, 3, 3, 4))
    processes = chance.choice((1, 1, chance.randint(1, count)))
    threads = tuple(chance.random() < 0.4 for _ in range(processes))
    several = chance.random() < 0.3
    does = chance.choice(DOES)
    clients: list[ClientPlan] = []
    for number in range(count):
        process = number if number < processes else chance.randrange(processes)
        client = _client(chance, "ABCD"[number], process, does, several=several)
        peers = [other for other in clients if other.process == client.process]
        if peers and chance.random() < 0.3:
            one = chance.choice(peers)
            client = client._replace(lock=one.lock, keys=one.keys, ttl=one.ttl, owner=one.owner)
        clients.append(client)
    rates, early = _clocks(chance, processes)
    return Plan(
        tuple(clients),
        threads,
        rates,
        queueing=chance.random() < 0.6,
        watching=seed % 3 == 0,
        batching=several and chance.random() < 0.8,
        early=early,
        poll=chance.choice((None, None, 0.5, 1.5)),
        seed=seed,
        share=chance.choice((0.02, 0.1, 0.3)),
        faults=_faults(chance),
    )


def _crowd(chance: random.Random, seed: int) -> Plan:
    """Draw 4 to 8 clients in 2 or 3 processes, most with a MultiLock of 2 or 3 keys out of 4, the others with a Lock.

    The keys are given in any order.  All stay briefly and try patiently, so that local queues are long and keys are
    handed over.
    """
    processes = chance.choice((2, 2, 3))
    count = chance.randint(4, 8)
    ttl = chance.choice((3.0, 10.0))
    clients = tuple(
        ClientPlan(
            name,
            number % processes,
            lock=name,
            keys=tuple(chance.sample(CROWD_KEYS, chance.choice((1, 2, 2, 2, 3)))),
            ttl=ttl,
            owner=None,
            rounds=tuple(_brief_round(chance) for _ in range(chance.randint(1, 3))),
        )
        for number, name in enumerate("ABCDEFGH"[:count])
    )
    return Plan(
        clients,
        tuple(chance.random() < 0.4 for _ in range(processes)),
        (1.0,) * processes,
        queueing=chance.random() < 0.5,
        watching=seed % 3 == 0,
        batching=chance.random() < 0.8,
        poll=chance.choice((None, 0.5)),
        seed=seed,
        share=chance.choice((0.0, 0.02, 0.1)),
        faults=_faults(chance),
    )


def _brief_round(chance: random.Random) -> Round:
    """Draw a round that is over soon once all its keys are held."""
    body = (Stay(chance.choice((0.0, 0.01, 0.03, 0.3))),)
    return Round(chance.choice((0.0, 0.0, 0.05)), chance.choice((5.0, 40.0, None, None)), body)


def _faults(chance: random.Random) -> frozenset[str]:
    """Draw what may go wrong: everything, or a few things only, which then coincide more often."""
    kind = chance.random()
    if kind < 0.5:
        return frozenset(chance.sample(sorted(FAULTS), chance.randint(1, 5)))
    if kind < 0.6:
        return frozenset({"full", "stall", *chance.sample(_UNANSWERED, 2)})
    return FAULTS if kind < 0.7 else FAULTS - {"forget"}


def _client(chance: random.Random, name: str, process: int, does: Sequence[Deed], *, several: bool) -> ClientPlan:
    ttl = chance.choice((1.0, 3.0, 10.0))
    return ClientPlan(
        name,
        process,
        lock=name,
        keys=chance.choice(((KEYS[0],), KEYS[1:], KEYS, KEYS)) if several else KEYS[:1],
        ttl=ttl,
        owner=chance.choice((None, None, "shared")),
        rounds=tuple(_round(chance, ttl, does) for _ in range(chance.randint(2, 5))),
        retry=chance.choice(((1, 1), (1, 1), (0, 0), (0, 0), (2, 0), (0, 2))),
        auto_renew=chance.random() < 0.7,
        max_hold=chance.choice((None, None, None, 4.0)),
    )


def steady(
    client: ClientPlan, chance: random.Random, does: Sequence[Deed], timeouts: Sequence[float | None]
) -> ClientPlan:
    """Draw 2 to 4 rounds for a client, which may stay for longer than a lease, and how it renews and tries."""
    return client._replace(
        rounds=tuple(_steady_round(chance, does, timeouts) for _ in range(chance.randint(2, 4))),
        retry=chance.choice(((1, 1), (0, 0))),
        auto_renew=chance.random() < 0.7,
        max_hold=chance.choice((None, None, 4.0)),
    )


def steady_run(plan: Plan, chance: random.Random, processes: int, shares: Sequence[float], **odds: float) -> Plan:
    """Draw how the processes run, whether the store does what `odds` names, and how much goes wrong."""
    some = sorted(plan.faults)
    return plan._replace(
        threads=tuple(chance.random() < 0.4 for _ in range(processes)),
        rates=tuple(chance.choice((1.0, 1.0, 0.996, 1.004)) for _ in range(processes)),
        **dict[str, Any]({does: chance.random() < odd for does, odd in odds.items()}),
        early=chance.choice((0.0, 0.5)),
        poll=chance.choice((None, 0.5)),
        share=chance.choice(shares),
        faults=frozenset(chance.sample(some, chance.randint(1, 5)) if chance.random() < 0.6 else some),
    )


def _steady_round(chance: random.Random, does: Sequence[Deed], timeouts: Sequence[float | None]) -> Round:
    body = tuple(
        Stay(chance.choice((0.0, 0.3, 1.0, 5.0)), chance.choice(does), chance.choice((None, 0.5, 2.0, 20.0)))
        for _ in range(chance.choice((0, 1, 2)))
    )
    return Round(chance.choice((0.0, 0.1, 1.0)), chance.choice(timeouts), body)


def _round(chance: random.Random, ttl: float, does: Sequence[Deed]) -> Round:
    body = tuple(
        Stay(
            chance.choice((0.0, 0.0, 0.02, 0.3, ttl / 3, 5.0)),  # at a third of the lease it is renewed
            chance.choice(does),
            chance.choice((None, 0.5, 2.0, 20.0)),
        )
        for _ in range(chance.choice((0, 0, 1, 2, 3)))
    )
    pause, timeout = chance.choice((0.0, 0.0, 0.1, 1.0)), chance.choice((0.0, 0.5, 5.0, 5.0, 40.0, None))
    return Round(pause, timeout, body, breaks=chance.random() < 0.03)


def _clocks(chance: random.Random, processes: int) -> tuple[tuple[float, ...], float]:
    rates: Sequence[float] = (1.0,)
    early = chance.choice((0.0, 0.0, 0.99))
    kind = chance.random()
    if kind < 0.1:
        rates = (0.5, 0.8, 1.0, 1.25, 2.0)
    elif kind < 0.2:
        rates, early = (0.996, 1.0, 1.004), min(early, 0.5)
    return tuple(chance.choice(rates) for _ in range(processes)), early
