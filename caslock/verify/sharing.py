"""Finds out whether the stores that a factory makes share their entries, as those of a URL do."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

from caslock.verify import locations
from caslock.verify.cleanup import put_for_a_moment
from caslock.verify.plan import Plan
from caslock.verify.processes import last_words

if TYPE_CHECKING:
    from caslock.store import Store

TTL: Final = 60.0
"""Seconds that the entry lasts which the others have to see."""

UNSEEN: Final = 3
"""Exit status of the other process if it does not see the entry."""


def check_sharing(plan: Plan) -> None:
    """Raise ValueError if two stores of the plan's factory, also in two processes, do not see each other's entries."""
    mine, other = locations.open_direct(plan), locations.open_direct(plan)
    try:
        with put_for_a_moment(mine, plan, "shared", TTL) as key:
            if not _sees(other, key):
                raise ValueError(
                    f"two stores of {plan.factory} do not see each other's entries: each call has to make a store of "
                    "the same place"
                )
            _check_process(plan, key)
    finally:
        locations.close(mine)
        locations.close(other)


def _check_process(plan: Plan, key: str) -> None:
    program = "from caslock.verify.sharing import look; look()"
    command = [sys.executable, "-c", program, plan.to_json(), key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TTL, check=False)  # noqa: S603 - our own
    if done.returncode == UNSEEN:
        raise ValueError(
            f"a store of {plan.factory} in another process does not see the entries of one in this process, and "
            "verify needs several processes: each has to make a store of the same place"
        )
    if done.returncode:
        raise ValueError(f"{plan.factory} gave no store in another process: {last_words(done.stderr)}")


def look() -> None:
    """Be the other process, whose arguments are the plan and the key."""
    plan, key = sys.argv[1:]
    store = locations.open_direct(Plan.from_json(plan))
    seen = _sees(store, key)
    locations.close(store)
    sys.exit(0 if seen else UNSEEN)


def _sees(store: Store, key: str) -> bool:
    entry = store.get(key)
    return entry is not None and entry.value == key.encode()
