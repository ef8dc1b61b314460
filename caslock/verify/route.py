"""Finds out whether the fault proxy can stand between a store and its server, and how long the store waits there."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.stores.shared.options import split
from caslock.testing.drive import driven
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.testing.steps import in_a_thread
from caslock.verify import locations

if TYPE_CHECKING:
    from caslock.verify import Plan

QUICK: Final = 0.5
"""Seconds that a request may take, where we can say so in the URL."""

PATIENCE: Final = 30.0
"""Seconds in which a store gives up a request that is not answered, if it has a timeout at all."""

SHORTEST: Final = 0.1


class Route(NamedTuple):
    """The way from a store to its server."""

    server: tuple[str, int] | None
    """The server's host and port; None where no proxy can stand before it."""
    timeout: float = QUICK
    """Seconds after which the store gives up a request."""
    why_not: str = ""
    """Why no proxy can stand there."""


def find_route(plan: Plan) -> Route:
    """Look at the plan's store through a proxy that lets all pass, and then nothing."""
    server = locations.server_of(plan)
    if server is None:
        why = "a factory was named, not a URL with" if plan.factory else "the URL does not name"
        return Route(None, why_not=f"{why} a server's host and port")
    with FaultProxy(*server) as proxy, contextlib.ExitStack() as stack:
        try:
            store = locations.open_store(plan, locations.through(plan.url, proxy.port, QUICK))
            stack.callback(locations.close, store)
            driven(store).get(plan.names()[0])
        except Exception as error:  # noqa: BLE001 - of whatever kind: through the proxy it does not work
            return Route(None, why_not=f"through a proxy on the loopback address it says: {error}")
        if not proxy.requests:
            return Route(None, why_not="its requests do not go to the host and port of its URL")
        if split(plan.url).scheme in locations.TIMEOUTS:
            return Route(server)
        # Another store's own timeout is measured.
        proxy.decide = lambda _: Passage("drop request")
        began = time.monotonic()
        done, _ = wait([in_a_thread(lambda: driven(store).get(plan.names()[0]))], PATIENCE)
        took = time.monotonic() - began
        proxy.decide = lambda _: PASS
        return Route(server, max(took, SHORTEST) if done else QUICK)
