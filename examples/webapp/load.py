"""Send many booking requests to the running service, and count the double bookings: see app.py.

For each night there are twice as many requests as rooms, for rooms and guests taken at random.  The exit status is 0 if
the service has as many new bookings as it has told, and none of them is a double one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

PER_NIGHT = 24
GUESTS = 60


class Service:
    """The service, on a connection for each thread."""

    def __init__(self, url: str) -> None:
        """Connect at the first use."""
        self._address = urlsplit(url).netloc
        self._threads = threading.local()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status and what the JSON says.  A request that fails is not repeated."""
        if not hasattr(self._threads, "connection"):
            self._threads.connection = HTTPConnection(self._address, timeout=120)
        connection: HTTPConnection = self._threads.connection
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def totals(url: str) -> dict[str, int]:
    """Ask for the counts, on a new connection: the service closes one that was not used for five seconds."""
    _, counts = Service(url).ask("GET", "/totals")
    return {**counts}


def requests(options: argparse.Namespace, first_night: int) -> list[dict[str, object]]:
    """Make the requests, for one night after the other."""
    chance = random.Random(options.seed)  # noqa: S311 - the same requests for the same seed
    return [
        {
            "night": first_night + number // PER_NIGHT,
            "room": chance.randint(1, options.rooms),
            "guest": f"guest {chance.randint(1, GUESTS)}",
            "payment": options.payment,
            "lock": not options.without_lock,
        }
        for number in range(options.requests)
    ]


def main() -> int:
    """Run, and print the counts."""
    options = arguments()
    service = Service(options.url)
    before = totals(options.url)
    began = time.monotonic()
    with ThreadPoolExecutor(options.clients) as clients:
        asked = requests(options, before["last_night"] + 1)
        answers = Counter(clients.map(lambda body: service.ask("POST", "/book", body)[0], asked))
    took = time.monotonic() - began
    after = totals(options.url)
    new = {name: after[name] - before[name] for name in ("bookings", "rooms_twice", "guests_twice")}
    print(f"{len(asked):,} requests in {took:.1f} s, {len(asked) / took:,.0f} a second, ", end="")
    print("without the lock" if options.without_lock else "with the lock")
    for status, number in sorted(answers.items()):
        print(f"{number:7,} answers {status}")
    print(f"{new['bookings']:7,} new bookings")
    print(f"{new['rooms_twice']:7,} of a room that was sold already")
    print(f"{new['guests_twice']:7,} of a guest who had a room already")
    return 0 if (new["bookings"], new["rooms_twice"], new["guests_twice"]) == (answers[201], 0, 0) else 1


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the service (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=32, metavar="N", help="at one time (default: %(default)s)")
    parser.add_argument("--rooms", type=int, default=12, metavar="N", help="from 1 to 12 (default: %(default)s)")
    parser.add_argument("--payment", type=float, default=0.005, metavar="S", help="seconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the requests (default: %(default)s)")
    parser.add_argument("--without-lock", action="store_true", help="ask the service to leave the lock out")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
