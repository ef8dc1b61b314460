"""Book hotel rooms on several servers, first without a lock and then with one.

The app is naive on purpose.  It checks that the room and the guest are free that night, works out the price, charges a
card, and writes the booking; its database has no constraint that forbids a second one.  Two servers that check at the
same time both find the room free, and both sell it.  A `MultiLock` on the room and the guest around the same code
prevents that.  Each booking also stores the fencing number of its room, which grows from one holder to the next.

The script prints a summary, and draws which server worked on which room when.  The exit status is 0 if there were
double bookings without the lock, and none with it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from booking_picture import Panel, Visit, clashes, picture
from fleet import WorkerFailed, lock_store, positive, share_out

import caslock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TABLE = """CREATE TABLE bookings (
    id INTEGER PRIMARY KEY, night INTEGER, room INTEGER, guest INTEGER, price INTEGER, server TEXT, fence INTEGER)"""
INDEX = "CREATE INDEX nights ON bookings (night)"
NOT_FREE = "SELECT 1 FROM bookings WHERE night = ? AND (room = ? OR guest = ?)"
SOLD = "SELECT count(*) FROM bookings WHERE night = ?"
INSERT = "INSERT INTO bookings (night, room, guest, price, server, fence) VALUES (?, ?, ?, ?, ?, ?)"
# With MIN, SQLite takes the other columns from the row that has the minimum: the first conflicting booking.
DOUBLES = """SELECT late.id, late.night, late.room, late.guest, late.server,
        MIN(early.id), early.room, early.guest, early.server
    FROM bookings late JOIN bookings early ON early.night = late.night AND early.id < late.id
    WHERE early.room = late.room OR early.guest = late.guest GROUP BY late.id ORDER BY late.id"""
FENCES = "SELECT room, fence FROM bookings WHERE fence NOT NULL ORDER BY room, id"


class Request(NamedTuple):
    """A request of a guest."""

    night: int
    room: int
    guest: int
    payment: float  # seconds until the card company answers


class Job(NamedTuple):
    """The arguments of every server."""

    requests: Sequence[Request]
    bookings: Path
    locks: str  # URL of the lock store; empty: no lock


def make_requests(number: int, rooms: int, guests: int, seed: int) -> list[Request]:
    """Make requests for one night after the other, twice as many for each night as there are rooms."""
    chance = random.Random(seed)  # noqa: S311 - the same requests for the same seed
    return [
        Request(n // (2 * rooms) + 1, chance.randint(1, rooms), chance.randint(1, guests), chance.uniform(0.002, 0.008))
        for n in range(number)
    ]


def book(database: sqlite3.Connection, request: Request, server: str, fence: int | None) -> int | None:
    """Book a room and return the number of the booking, or None.  This is the app; it does not know about locks."""
    night, room, guest, payment = request
    if database.execute(NOT_FREE, (night, room, guest)).fetchone():
        return None
    (sold,) = database.execute(SOLD, (night,)).fetchone()
    price = 80 + 5 * sold
    time.sleep(payment)
    return database.execute(INSERT, (night, room, guest, price, server, fence)).lastrowid


def handle(database: sqlite3.Connection, request: Request, server: str, store: caslock.Store | None) -> Visit:
    """Handle a request, with the lock if there is a store for it."""
    asked = began = time.monotonic()
    if store is None:
        booking = book(database, request, server, None)
        ended = time.monotonic()
    else:
        room, guest = f"room:{request.room}", f"guest:{request.guest}"
        with caslock.MultiLock(store, [room, guest], timeout=30, note=server) as holds:
            began = time.monotonic()
            booking = book(database, request, server, holds[room].fence if store.traits.fences else None)
            ended = time.monotonic()
    return Visit(server, request.night, request.room, request.guest, asked, began, ended, booking)


def serve(server: str, job: Job, numbers: Iterator[int]) -> list[Visit]:
    """Run a server, in a process of its own."""
    store = caslock.connect(job.locks) if job.locks else None
    with closing(open_database(job.bookings)) as database:
        return [handle(database, job.requests[number], server, store) for number in numbers]


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database of the app, which is independent of the store of the locks."""
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = OFF")
    return database


class Double(NamedTuple):
    """A booking that should have been refused, and the first one that it conflicts with."""

    booking: int
    night: int
    room: int
    guest: int
    server: str
    first: int
    first_room: int
    first_guest: int
    first_server: str

    def __str__(self) -> str:
        """Describe it in a sentence."""
        if self.room == self.first_room:
            first, second = f"sold room {self.room} to guest {self.first_guest}", f"to guest {self.guest}"
        else:
            first, second = f"put guest {self.guest} into room {self.first_room}", f"into room {self.room}"
        return f"night {self.night}: {self.first_server} {first}, {self.server} {second}"


class Run(NamedTuple):
    """The results of one run."""

    visits: list[Visit]
    doubles: list[Double]
    fences: list[tuple[int, int]]  # (room, fence) of the bookings, room by room, in the order of booking
    seconds: float

    @property
    def fences_grow(self) -> bool:
        """Whether each fence is larger than the one before it of the same room."""
        return all(early < late for (room, early), (other, late) in pairwise(self.fences) if room == other)

    def figures(self) -> list[str]:
        """Return a column of the summary."""
        taken = sum(visit.booking is not None for visit in self.visits)
        waits = sorted(1000 * (visit.began - visit.asked) for visit in self.visits)
        p50, p99 = (waits[int(part * (len(waits) - 1))] for part in (0.50, 0.99))
        counts = (len(self.visits), taken, len(self.visits) - taken, len(self.doubles), len(clashes(self.visits)))
        return [
            *(f"{count:,}" for count in counts),
            f"{self.seconds:.1f}",
            f"{len(self.visits) / self.seconds:,.0f}",
            *(f"{wait:.1f} ms" if wait else "-" for wait in (p50, p99)),
        ]


ROWS = (
    "bookings asked",
    "taken",
    "refused",
    "double bookings",
    "two servers in one room",
    "seconds",
    "bookings asked a second",
    "wait for the lock, p50",
    "wait for the lock, p99",
)


def run(title: str, servers: Sequence[str], job: Job) -> Run:
    """Have the servers handle all requests, and read what they have booked."""
    with closing(open_database(job.bookings)) as database:
        database.execute(TABLE)
        database.execute(INDEX)
        answers, seconds = share_out(title, len(job.requests), servers, serve, job)
        visits = [visit for answer in answers for visit in answer]
        doubles = [Double(*row) for row in database.execute(DOUBLES)]
        return Run(visits, doubles, database.execute(FENCES).fetchall(), seconds)


def report(bare: Run, locked: Run) -> None:
    """Print the summary of both runs."""
    print(f"\n{'':<28}{'without lock':>14}{'with lock':>14}")
    for name, *figures in zip(ROWS, bare.figures(), locked.figures(), strict=True):
        print(f"{name:<28}{figures[0]:>14}{figures[1]:>14}")
    print()
    for double in bare.doubles[:2]:
        print(f"Without the lock, {double}.")
    rooms = len({room for room, _ in locked.fences})
    if not locked.fences:
        print("This store has no fences.")
    elif locked.fences_grow:
        print(f"With the lock, the fences only grow: {len(locked.fences):,} bookings of {rooms} rooms.")
    else:
        print("THE FENCES DO NOT GROW.")
    if not bare.doubles:
        print("There was no double booking without the lock, so this proves nothing: try more --bookings or --workers.")
    for double in locked.doubles:
        print(f"THE LOCK HAS FAILED: {double}.")


def compare(options: argparse.Namespace) -> int:
    """Run without the lock and with it."""
    servers = [f"{('eu', 'us')[n % 2]}-{n // 2 + 1}" for n in range(options.workers)]
    requests = make_requests(options.bookings, options.rooms, options.users, options.seed)
    print(f"{len(requests):,} requests for {options.rooms} rooms, to {len(servers)} servers: {', '.join(servers)}")
    with tempfile.TemporaryDirectory(prefix="caslock-booking-") as folder:
        locks = options.url or f"sqlite:///{folder}/locks.db"
        bare = run("without lock", servers, Job(requests, Path(folder, "bare.db"), ""))
        locked = run("with lock", servers, Job(requests, Path(folder, "locked.db"), locks))
    report(bare, locked)
    panels = [
        Panel(title, run.visits, {double.booking for double in run.doubles})
        for title, run in (("Without lock", bare), ("With lock", locked))
    ]
    options.svg.write_text(picture(panels, servers), encoding="utf-8")
    print(f"Who was in which room when: {options.svg}")
    return 0 if bare.doubles and not locked.doubles and locked.fences_grow else 1


def main() -> int:
    """Run the example."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    options = arguments()
    try:
        return compare(options)
    except (WorkerFailed, OSError) as failure:
        print(f"\n{failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--url",
        type=lock_store,
        help="store of the locks, such as redis://localhost:6379/0 (default: a temporary file)",
    )
    parser.add_argument(
        "--workers", type=positive, default=4, metavar="N", help="number of servers (default: %(default)s)"
    )
    parser.add_argument(
        "--bookings", type=positive, default=4000, metavar="N", help="number of requests (default: %(default)s)"
    )
    parser.add_argument(
        "--rooms", type=positive, default=12, metavar="N", help="number of rooms (default: %(default)s)"
    )
    parser.add_argument(
        "--users", type=positive, default=60, metavar="N", help="number of guests (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed for the requests (default: %(default)s)")
    parser.add_argument(
        "--svg",
        type=Path,
        default=Path("booking.svg"),
        metavar="PATH",
        help="file for the picture (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
