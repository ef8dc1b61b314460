"""Insert rows once each from several processes, into a table without constraints, first without a lock, then with one.

Each request makes the classic mistake: it checks whether the row exists, and inserts it if not.  If several processes
check at the same time, each of them inserts a row.  With a `Lock` around the same code there is one row for each
customer.  The exit status is 0 if both happen.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fleet import WorkerFailed, lock_store, positive, share_out

import caslock

if TYPE_CHECKING:
    from collections.abc import Iterator


REQUESTS = 100
"""How many consecutive requests are for the same customer."""


class Job(NamedTuple):
    """The arguments of every process."""

    database: Path
    locks: str  # URL of the lock store; empty: no lock


def insert_once(database: sqlite3.Connection, customer: int, worker: str) -> None:
    """Check, then insert: correct for one process at a time."""
    if database.execute("SELECT 1 FROM gifts WHERE customer = ?", (customer,)).fetchone() is None:
        time.sleep(0.02)  # wrap the gift
        database.execute("INSERT INTO gifts VALUES (?, ?)", (customer, worker))


def work(worker: str, job: Job, numbers: Iterator[int]) -> int:
    """Run one of the processes; return the number of requests that it has handled."""
    done = 0
    store = caslock.connect(job.locks) if job.locks else None
    with closing(open_database(job.database)) as database:
        for number in numbers:
            customer = number // REQUESTS
            if store is None:
                insert_once(database, customer, worker)
            else:
                with caslock.Lock(store, f"gift:{customer}", note=worker):
                    insert_once(database, customer, worker)
            done += 1
    return done


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database, whose table has no unique constraint."""
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE IF NOT EXISTS gifts (customer INTEGER, worker TEXT)")
    return database


def rows(title: str, workers: int, requests: int, job: Job) -> int:
    """Handle all requests, and count the rows."""
    names = [f"worker-{n + 1}" for n in range(workers)]
    with closing(open_database(job.database)) as database:
        handled, seconds = share_out(title, requests, names, work, job)
        (count,) = database.execute("SELECT count(*) FROM gifts").fetchone()
    print(f"{title}: {sum(handled):,} requests by {workers} processes in {seconds:.1f} s left {count} row(s)\n")
    return int(count)


def main() -> int:
    """Run the example."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--url",
        type=lock_store,
        help="store of the locks, such as redis://localhost:6379/0 (default: a temporary file)",
    )
    parser.add_argument(
        "--requests", type=positive, default=10_000, metavar="N", help="number of requests (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=positive, default=6, metavar="N", help="number of processes (default: %(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="caslock-insert-once-") as folder:
        url = options.url or f"sqlite:///{folder}/locks.db"
        try:
            bare = rows("Without lock", options.workers, options.requests, Job(Path(folder, "bare.db"), ""))
            locked = rows("With lock", options.workers, options.requests, Job(Path(folder, "locked.db"), url))
        except WorkerFailed as failure:
            print(failure, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("\nStopped.", file=sys.stderr)
            return 130
    gifts = -(-options.requests // REQUESTS)
    print(f"Rows for {gifts} gift(s): {bare} without the lock, {locked} with it.")
    if bare == gifts:
        print("Even without the lock there is only one row per gift, so this proves nothing: try more --workers.")
    return 0 if bare > gifts == locked else 1


if __name__ == "__main__":
    sys.exit(main())
