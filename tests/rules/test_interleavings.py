"""Single interleavings of the real protocol in the simulator, each written out step by step."""

from __future__ import annotations

import pytest

from caslock.errors import StoreUnavailable
from tests.proof.simulator import Plan, Run
from tests.proof.simulator.plan import KEYS, ClientPlan, Round, Stay
from tests.proof.simulator.runtime import Flow
from tests.proof.simulator.waits import START, Wait
from tests.support import protocol_functions as protocol

KEY = KEYS[0]
TTL = 3.0


def client(name: str, process: int, *rounds: Round, ttl: float = TTL) -> ClientPlan:
    """Plan a client with a Lock object of its own."""
    return ClientPlan(name, process, name, (KEY,), ttl, None, rounds)


def scripted(*clients: ClientPlan, threads: bool = False, queueing: bool = False, poll: float | None = None) -> Run:
    """Begin a run whose steps the test chooses."""
    processes = 1 + max(client.process for client in clients)
    return Run(Plan(clients, (threads,) * processes, (1.0,) * processes, queueing=queueing, batching=False, poll=poll))


def finish(run: Run, name: str) -> None:
    """Let one coroutine run to its end."""
    while name in run.flows:
        run.do(name, "go")


@pytest.mark.parametrize("queueing", [False, True], ids=["polling", "waiting at the store"])
def test_a_wait_ends_with_the_lease_it_saw(*, queueing: bool) -> None:
    """A waiter with long pauses tries again as soon as the lease of a dead holder is over."""
    holder = client("A", 0, Round(0.0, 0.0, (Stay(1000.0),)))
    waiter = client("B", 1, Round(0.0, None, (Stay(0.0),)), ttl=60.0)
    run = scripted(holder, waiter, queueing=queueing, poll=30.0)
    for who in ("A", "A", "B", "B"):  # each begins, and puts
        run.do(who, "go")
    run.do("process 1", "kill")

    while not run.clients[1].entered:
        assert run.go_on()

    assert TTL <= run.now - START < TTL + 0.1
    run.close()


def acquired(run: Run, name: str = "A") -> float:
    """Let an acquire go on while all is well, and return how much of its lease is left as it returns."""
    (client,) = (each for each in run.clients if each.name == name)
    while not client.holding:
        assert run.go_on()
    return client.holding[0]._attempt.lease.deadline - client.process.now()


@pytest.mark.parametrize("late", [1.4, 1.6, 4.0], ids=["less than half", "more than half", "all of it"])
def test_an_answer_that_took_half_the_lease_is_renewed_first(late: float) -> None:
    """An acquire returns with at least half of its lease left, and sends no other request for that if it has."""
    run = scripted(client("A", 0, Round(0.0, 60.0, (Stay(1000.0),))))
    run.do("A", "go")
    run.do("A", "slow")
    run.now += late
    assert acquired(run) >= TTL / 2
    sent = [step.request for step in run.story if step.what != "the reply comes"]
    puts = [request for request in sent if request is not None and request.verb == "put"]
    assert len(puts) == {1.4: 1, 1.6: 2, 4.0: 3}[late]  # what has ended is not there to be renewed
    run.close()


def test_an_answer_that_is_always_slow_is_taken_if_the_lease_lives() -> None:
    """After a renewal, too, that has taken more than half of the lease, what is left is enough."""
    run = scripted(client("A", 0, Round(0.0, 60.0, (Stay(1000.0),))))
    run.do("A", "go")
    for _ in range(2):
        run.do("A", "slow")
        run.now += 2.0
        run.do("A", "go")
    assert run.clients[0].holding
    run.close()


def test_answers_that_outlast_every_lease_are_an_error() -> None:
    """An acquire whose leases have all ended before it knew of them does not say that somebody else holds the key."""
    run = scripted(client("A", 0, Round(1000.0, 0.0)))
    run.current = run.flows["A"]
    attempt, runtime = run.states[0]._attempt(), run.processes[0]

    async def go() -> None:
        await Wait()
        with pytest.raises(StoreUnavailable, match="answers too slowly for a ttl of 3 s"):
            await protocol.acquire(runtime, attempt, 0.0)

    run.start(Flow("slow", run.clients[0], go(), Wait()))
    run.do("slow", "go")
    while "slow" in run.flows:
        run.do("slow", "slow")
        run.now += TTL + 1
        run.do("slow", "go")
    run.close()
