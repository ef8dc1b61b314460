"""``python -m tests.proof.torture redis --seconds 600 --seed 1`` starts a Redis and tortures it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from caslock.errors import StoreError
from caslock.stores.dynamodb import DynamoDBStore
from caslock.verify import locations
from caslock.verify.plan import Plan
from caslock.verify.run import torture
from caslock.verify.signals import Interrupts
from tests.proof.torture import LAWS, TroubledServer
from tests.support.servers import (
    DYNAMODB,
    ETCD,
    HAZELCAST,
    MEMCACHED,
    MYSQL,
    NATS,
    POSTGRESQL,
    REDIS,
    TAIR_EMULATOR,
    ZOOKEEPER,
    is_url,
    private,
    tair_module,
)

NOT_TRIED: Final = 2
"""The exit code when it could not even begin."""

KINDS: Final = {
    **{kind.name: kind for kind in (REDIS, MEMCACHED, ZOOKEEPER, ETCD, NATS, HAZELCAST, DYNAMODB, POSTGRESQL)},
    "mariadb": MYSQL,
    "tair": (not is_url(TAIR_EMULATOR) and tair_module()) or TAIR_EMULATOR,
}
OPTIONS: Final = {
    "memcached": ("-m", "4", "-M"),  # it is soon full, and evicts nothing
    "mariadb": ("--innodb-flush-log-at-trx-commit=2",),  # what it has acknowledged outlives it, if killed
}
"""What servers are started with besides."""

OWN: Final = ("sqlite", *KINDS)
"""The stores that a run can make for itself."""


def main() -> int:
    """Torture a store, and print the report as JSON; exit 1 when a law was broken, 2 when it could not be tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.torture", description=main.__doc__)
    parser.add_argument(
        "store",
        help=f"a URL, as caslock.connect takes it; or one of {', '.join(OWN)}: our own, whose server is stopped, "
        "killed (not DynamoDB Local) and (Redis, memcached, Tair) out of memory besides (tair: of the module that "
        "CASLOCK_TEST_TAIR names, else emulated)",
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ttl", type=float, nargs=2, metavar=("SHORTEST", "LONGEST"), default=Plan.ttls)
    parser.add_argument("--keys", type=int, default=Plan.keys)
    parser.add_argument("--workers", type=int, default=Plan.workers)
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("--tasks", type=int, default=Plan.tasks)
    options = vars(parser.parse_args())
    store, (shortest, longest) = options.pop("store"), options.pop("ttl")
    plan = Plan(ttls=(shortest, longest), **options)
    interrupts = Interrupts()
    try:
        with interrupts:
            return _run(replace(plan, url=store))
    except KeyboardInterrupt:
        return _say("interrupted; nothing is left behind", interrupts.exit_code)


def _run(plan: Plan) -> int:
    with contextlib.ExitStack() as stack:
        server: TroubledServer | None = None
        try:
            if plan.url in OWN:
                url, server = stack.enter_context(own_store(plan.url))
                plan = replace(plan, url=url)
            locations.close(locations.reach(plan))
        except (pytest.skip.Exception, pytest.fail.Exception) as error:
            return _say(str(error), NOT_TRIED)
        except (StoreError, ValueError, TypeError, ImportError, AttributeError, OSError, RuntimeError) as error:
            return _say(str(error) or repr(error), NOT_TRIED)
        report = torture(plan, disturb=server.actions if server else None, laws=LAWS).report
    json.dump(report.to_dict(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if report.passed else 1


@contextlib.contextmanager
def own_store(name: str) -> Iterator[tuple[str, TroubledServer | None]]:
    """Make the store `name` of `OWN` in a temporary folder: its URL, and what disturbs its server if it has one."""
    with tempfile.TemporaryDirectory(prefix="caslock-own-") as folder:
        if name not in KINDS:
            yield f"sqlite:///{folder}/locks.db", None
            return
        with private(KINDS[name], Path(folder), *OPTIONS.get(name, ())) as server:
            squeezed = {} if name in ("redis", "memcached", "tair") else {"squeeze_every": 0.0}
            if name == "dynamodb":
                squeezed["restart_every"] = 0.0  # its table would be gone
                _make_table(server.url)
            yield server.url, TroubledServer(server, **squeezed)


def _make_table(url: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "caslock")
    with DynamoDBStore.from_url(f"{url}&timeout=20") as store:
        store.create_table()


def _say(line: str, code: int) -> int:
    sys.stderr.write(f"python -m tests.proof.torture: {' '.join(line.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
