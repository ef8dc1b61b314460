"""Single interleavings of the real protocol in the simulator, each written out step by step."""

from __future__ import annotations

import pytest

from tests import protocol_functions as protocol
from tests.simulator import Plan, Run
from tests.simulator.plan import KEYS, ClientPlan, Round, Stay
from tests.simulator.runtime import Flow
from tests.simulator.waits import START, Wait

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


def test_a_clean_up_waits_for_the_renewal_under_way() -> None:
    """An acquire that is undone while its hold is renewed leaves nothing, whichever write arrives last."""
    run = scripted(client("A", 0, Round(0.0, 0.0, (Stay(1000.0),))), threads=True)
    run.do("A", "go")
    run.do("A", "late")  # so the clean-up writes a free record, not a removal
    run.do("A", "go")
    run.do("A", "go")
    (hold,) = run.clients[0].holding
    attempt, runtime = hold._attempt, run.processes[0]
    run.do("time", "1")
    (renewal,) = (name for name in run.flows if name != "A")
    run.do(renewal, "go")
    run.do(renewal, "lose")  # the renewal reads now, and then writes again

    async def undo() -> None:
        await Wait()
        await protocol.give_up(runtime, attempt, KeyboardInterrupt())

    run.clients[0].holding = ()
    run.start(Flow("undo", run.clients[0], undo(), Wait(), interruptible=False))
    run.do("undo", "go")
    finish(run, renewal)
    finish(run, "undo")

    lease = run.store.observed(KEY, run.now)
    assert lease is not None
    assert lease.record.free
    run.close()
