"""Book hotel rooms over HTTP, with several worker processes, and show live who holds which room and who waits.

    pip install fastapi uvicorn sqlalchemy caslock
    uvicorn --app-dir examples/webapp --workers 4 app:app

Then open http://127.0.0.1:8000/.  Two settings, in the environment:

- DATABASE_URL, for SQLAlchemy: sqlite:///hotel.db unless set, or postgresql+psycopg://...
- CASLOCK_STORE, for the locks: sqlite:///locks.db unless set, or redis://... or any other store that has fences.

A request checks that the room and the guest are free that night, waits for the payment, and writes the booking.  Two
workers that check at the same time would both sell the room, so this is done under an `AsyncMultiLock` on the room and
the guest.  ``"lock": false`` in a request leaves the lock out, to show what happens then.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse
from hotel import Hotel, Wish
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

import caslock

ROOMS = 12
TIMEOUT = 10.0  # seconds that a request waits for its turn
TICK = 0.25  # seconds between two looks at which requests wait: shorter waits are not shown

logger = logging.getLogger("uvicorn.error")
waiting: dict[object, dict[str, object]] = {}  # the requests of this worker that wait


class Booking(BaseModel):
    """The body of a request."""

    night: int = Field(ge=1, le=1_000_000)
    room: int = Field(ge=1, le=ROOMS)
    guest: str = Field(min_length=1, max_length=40)
    payment: float = Field(default=0, ge=0, le=60)  # seconds until the card company answers
    lock: bool = True


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store and the database; one worker at a time creates the tables."""
    hotel = Hotel(os.environ.get("DATABASE_URL", "sqlite:///hotel.db"))
    async with caslock.connect_async(os.environ.get("CASLOCK_STORE", "sqlite:///locks.db")) as store:
        app.state.hotel, app.state.store = hotel, store
        async with caslock.AsyncLock(store, "tables"):
            await asyncio.to_thread(hotel.create)
        publisher = asyncio.create_task(publish(hotel))
        yield
        publisher.cancel()
        with suppress(asyncio.CancelledError):
            await publisher
    hotel.close()


app = FastAPI(lifespan=lifespan)


@app.exception_handler(caslock.StoreUnavailable)
async def unavailable(_request: Request, _error: Exception) -> JSONResponse:
    """Tell the client to come back."""
    return JSONResponse({"detail": "try again later"}, status_code=503, headers={"Retry-After": "5"})


@app.post("/book", status_code=201)
async def book(booking: Booking, request: Request) -> dict[str, str]:
    """Book a room: 201, 409 if it is taken, 423 if others have kept the room or the guest busy for too long."""
    hotel, wish = request.app.state.hotel, Wish(booking.night, booking.room, booking.guest)
    if not booking.lock:
        return await check_then_insert(hotel, wish, booking.payment, {})
    keys = [caslock.key("room", wish.room), caslock.key("guest", wish.guest)]
    lock = caslock.AsyncMultiLock(request.app.state.store, keys, timeout=TIMEOUT, note=wish.guest)
    with shown_as_waiting(wish):
        holds = await lock.acquire()
    if holds is None:
        raise HTTPException(423, "somebody else is booking this room, or for this guest")
    async with holds:
        return await check_then_insert(hotel, wish, booking.payment, {key: holds[key].fence for key in keys})


async def check_then_insert(hotel: Hotel, wish: Wish, payment: float, held: dict[str, int]) -> dict[str, str]:
    """Do the work of a request.  If a lease is lost, it is cancelled, but a thread goes on: the fences refuse it."""
    if not await asyncio.to_thread(hotel.is_free, wish, held):
        raise HTTPException(409, f"room {wish.room} is taken that night, or {wish.guest} has another one")
    await asyncio.sleep(payment)
    await asyncio.to_thread(hotel.insert, wish, held)
    return {"detail": f"room {wish.room} is booked for {wish.guest}"}


@contextmanager
def shown_as_waiting(wish: Wish) -> Iterator[None]:
    """Let the page show the request, if it takes long."""
    ticket = object()
    waiting[ticket] = {"room": wish.room, "guest": wish.guest, "since": time.time()}
    try:
        yield
    finally:
        del waiting[ticket]


async def publish(hotel: Hotel) -> None:
    """Write into the database which requests of this worker wait.  The store of the locks does not know their names."""
    published = False
    while True:
        if waiting or published:
            try:
                await asyncio.to_thread(hotel.publish, os.getpid(), [*waiting.values()])
            except SQLAlchemyError as error:  # only the page is concerned
                logger.warning("could not tell which requests wait: %s", error)
            published = bool(waiting)
        await asyncio.sleep(TICK)


@app.get("/")
async def page() -> FileResponse:
    """Show the rooms."""
    return FileResponse(Path(__file__).with_name("page.html"))


@app.get("/totals")
async def totals(request: Request) -> dict[str, int]:
    """Count bookings, and double bookings."""
    counts: dict[str, int] = await asyncio.to_thread(request.app.state.hotel.totals)
    return counts


@app.get("/state")
async def state(request: Request) -> dict[str, object]:
    """Return who holds each room, as the store of the locks says, who waits, and what was booked last."""
    hotel, store = request.app.state.hotel, request.app.state.store
    locks = [caslock.AsyncLock(store, caslock.key("room", room)) for room in range(1, ROOMS + 1)]
    holders = await asyncio.gather(*(lock.holder() for lock in locks))
    return {
        "now": time.time(),
        "rooms": [
            {
                "room": room,
                "holder": {"guest": record.note, "pid": record.pid, "since": since(record)} if record else None,
            }
            for room, record in enumerate(holders, 1)
        ],
        "waiting": await asyncio.to_thread(hotel.waiting),
        "latest": await asyncio.to_thread(hotel.latest, 8),
        "totals": await asyncio.to_thread(hotel.totals),
    }


def since(record: caslock.Record) -> float | None:
    """Return when a tenure began, as a UNIX time."""
    return record.since.timestamp() if record.since else None
