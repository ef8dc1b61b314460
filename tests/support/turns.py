"""How many tests run at one time: as many as there are processors, and beside them some that only wait.

Leases of tests are too short for more tests than processors.  But those in `WAITING` need next to no processor, and
allow for a second's delay: pytest-xdist gets workers for them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zlib
from typing import TYPE_CHECKING, Final

from caslock.testing import StoreContract
from tests.support.servers import lock_byte, unlock_byte

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.scheduler import LoadScopeScheduling

SERVERS: Final = [
    name
    for part in StoreContract.__mro__
    if part.__name__ == "ServerContract"
    for name in vars(part)
    if name.startswith("test_")
]
"""The tests of what a store does when its server fails."""

WAITING: Final = (
    "tests/servers/test_store_bounds.py::",
    "tests/stores/test_memcached.py::",  # many wait until a server is old enough
    "tests/stores/test_etcd.py::",
    "tests/stores/test_nats.py::",
    "tests/stores/test_hazelcast.py::",
    "tests/stores/test_dynamodb.py::",
    "tests/stores/test_every_server.py::",
    "tests/stores/test_quorum.py::",
    "tests/stores/test_redis_cluster.py::test_nodes_that_are_stopped",
    "tests/stores/test_redis_wait.py::",
    "tests/stores/test_sql.py::",
    "tests/stores/test_tair.py::",
    "tests/servers/test_bounds.py::",
    "tests/commands/test_cli_doctor.py::",  # servers that start
    *(
        f"tests/proof/test_contract.py::Test{api}{name}"
        for api in ("", "Async")
        for name in ("DynamoDB", "Etcd", "Hazelcast", "Nats")
    ),
    "tests/proof/test_contract_bites.py::",
    "tests/proof/test_faults_bite.py::",
    "tests/proof/test_server_contract_bites.py::",
    *(f"::{name}" for name in SERVERS),
)
"""What is in the ids of tests that wait most of the time, as a rule for a server that does not answer."""

TOGETHER: Final = (
    "tests/stores/test_hazelcast_cluster.py::",
    "tests/stores/test_zookeeper_ensemble.py::",
    "tests/docs/test_build.py::",
    "tests/proof/test_peer_faults.py::",
)
"""What is in the ids of tests that share what takes long to make: those of a file run one after the other."""

PROCESSORS: Final = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1

LANES: Final = min(PROCESSORS, 8) if sys.platform != "win32" else 0
"""Workers for tests that wait."""

FIRST: Final = 1 << 16
"""Below are the bytes of ports."""


def waits(test: str) -> bool:
    """Tell whether the test with that id waits most of the time."""
    return any(part in test for part in WAITING)


def scheduling() -> type[LoadScopeScheduling]:
    """Return the order in which pytest-xdist gives tests to workers; it begins with the largest groups."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - the tests can do without pytest-xdist

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # it has no types
        """Tests that wait are a group for each of their workers; each other test is one of its own."""

        def _split_scope(self, nodeid: str) -> str:
            together = next((part for part in TOGETHER if part in nodeid), None)
            if together:
                return together
            return f"waiting {zlib.crc32(nodeid.encode()) % LANES}" if LANES and waits(nodeid) else nodeid

    return Scheduling


@contextlib.contextmanager
def turn(session: str) -> Iterator[None]:
    """Wait until fewer tests of this session run than there are processors, and count as one of them until the end."""
    first = FIRST + zlib.crc32(session.encode()) * PROCESSORS
    while (byte := next(filter(lock_byte, range(first, first + PROCESSORS)), None)) is None:
        time.sleep(0.01)
    try:
        yield
    finally:
        unlock_byte(byte)
