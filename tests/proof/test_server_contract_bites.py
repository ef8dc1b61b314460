"""The kit finds stores that fail badly when their server does: each wrong in one way, over a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from uuid import uuid4

import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.retry import Retry

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT, AsyncStore, Entry, Store, Traits
from caslock.testing import StoreContract, StoreServer, life_contract, server_contract, steps, trial
from caslock.testing.drive import driven
from caslock.testing.life_contract import LifeContract
from caslock.testing.server_contract import ServerContract
from caslock.testing.steps import Clients, in_a_thread
from tests.proof.altered import wrong
from tests.support.servers import Server

if TYPE_CHECKING:
    Make: TypeAlias = Callable[[str, int, float], Store | AsyncStore]

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


QUICK, PATIENT = 1.0, 20.0
"""Seconds that a request may take: where the test waits for the end of them, and where nothing makes it late."""

SCRIPT = """
local key, verb, value, version, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local standing = redis.call('HGET', key, 'version') or '0'
if verb == 'put' and standing == version then
  local new = string.format('%d', redis.call('INCR', 'contract:last-version'))
  redis.call('HSET', key, 'value', value, 'version', new)
  redis.call('PEXPIRE', key, ttl)
elseif verb == 'remove' and standing == version then
  redis.call('DEL', key)
end
return redis.call('HMGET', key, 'value', 'version')
"""


class HasNoWith:
    def __init__(self, host: str, port: int, timeout: float | None = PATIENT) -> None:
        self.traits, self._timeout = Traits(f"redis://{host}:{port}/0"), timeout
        self._pid, self._mutex = os.getpid(), threading.Lock()
        self._address = host, port
        self._connection = self.connection(host, port)

    def connection(self, host: str, port: int) -> Any:  # noqa: ANN401 - redis-py leaves it without types
        make: Any = redis.Connection
        return make(
            host=host, port=port, socket_timeout=self._timeout, socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip

    def get(self, key: str) -> Entry | None:
        return self.ask(key, "get")

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return self.ask(key, "put", value, version, int(1000 * ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        return self.ask(key, "remove", b"", version) if version != ABSENT else self.get(key)

    def ask(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        with self._mutex:
            sent = False
            try:
                self.know_the_process()
                self._connection.connect()
                sent = True
                return self.reply(key, *arguments)
            except (redis.RedisError, OSError) as error:
                self._connection.disconnect()
                raise StoreUnavailable(f"no answer: {error}", sent=sent) from error
            except BaseException:
                self._connection.disconnect()
                raise

    def know_the_process(self) -> None:
        """Have another connection in a forked child; that of the parent is closed, and nothing is said over it."""
        if self._pid != os.getpid():
            self._pid, self._connection = os.getpid(), self.connection(*self._address)

    def reply(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        self._connection.send_command("EVAL", SCRIPT, 1, key, *arguments)
        value, version = self._connection.read_response()
        return None if version is None else Entry(value, int(version))

    def close(self) -> None:
        self._connection.disconnect()


class Plain(HasNoWith):
    """A store that does all that the contract of a server asks for, over one connection of redis-py."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Watcher(Plain):
    """It can also be watched and listed, by asking again and again."""

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        end = time.monotonic() + timeout
        while (entry := self.get(key)) and entry.version == version and time.monotonic() < end:
            time.sleep(0.02)

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        if entry := self.get(prefix):
            yield prefix, entry


class ConnectsEachTime:
    """A right store that has no connection between its requests, and so nothing to close."""

    def __init__(self, host: str, port: int, timeout: float = PATIENT) -> None:
        self.traits = Traits(f"redis://{host}:{port}/0")
        self._address = host, port, timeout

    def get(self, key: str) -> Entry | None:
        with contextlib.closing(self.connected()) as store:
            return store.get(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        with contextlib.closing(self.connected()) as store:
            return store.put_if_version(key, value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        with contextlib.closing(self.connected()) as store:
            return store.invalidate(key, version)

    def connected(self) -> Plain:
        return Plain(*self._address)


class CannotBeClosed(ConnectsEachTime):
    def __init__(self, host: str, port: int, timeout: float = PATIENT) -> None:
        super().__init__(host, port, timeout)
        self.kept = list[Plain]()

    def get(self, key: str) -> Entry | None:
        self.kept = [*self.kept[-2:], self.connected()]
        return self.kept[-1].get(key)


class RetriesByItself(Plain):
    """Has a client that sends a request up to three times."""

    def reply(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        for _ in range(2):
            try:
                return super().reply(key, *arguments)
            except (redis.RedisError, OSError):
                self._connection.disconnect()
        return super().reply(key, *arguments)


class WatchesForEver(Watcher):
    """Listens to its server without a timeout, until its test is over."""

    over = threading.Event()

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        over = self.over
        while not over.is_set():
            try:
                super().wait_while(key, version, timeout)
                break
            except StoreUnavailable:
                time.sleep(0.02)


class LeaksWhatItsListMeets(Watcher):
    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        try:
            yield from super().list(prefix)
        except StoreUnavailable as error:
            raise error.__cause__ or error from None


class KeepsConnections(Plain):
    def ask(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        with self._mutex:
            try:
                self._connection.connect()
                self._connection.send_command("EVAL", SCRIPT, 1, key, *arguments)
                value, version = self._connection.read_response(disconnect_on_error=False)
            except (redis.RedisError, OSError) as error:
                self._connection.disconnect()
                raise StoreUnavailable(f"no answer: {error}") from error
            return None if version is None else Entry(value, int(version))


class StaysAway(Plain):
    broken = False

    def ask(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        if self.broken:
            raise StoreUnavailable("broken", sent=False)
        try:
            return super().ask(key, *arguments)
        except StoreUnavailable:
            self.broken = True
            raise


class TakesAnEndForAnAnswer(Plain):
    def reply(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        try:
            return super().reply(key, *arguments)
        except redis.ConnectionError:
            self._connection.disconnect()
            return None


class AsyncPlain:
    def __init__(self, host: str, port: int, timeout: float = PATIENT) -> None:
        self.traits = Traits(f"redis://{host}:{port}/0")
        self._turn = asyncio.Lock()
        make: Any = redis.asyncio.Connection
        self._connection = make(
            host=host, port=port, socket_timeout=timeout, socket_connect_timeout=timeout,
            retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
        )  # fmt: skip

    async def get(self, key: str) -> Entry | None:
        return await self.ask(key, "get")

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return await self.ask(key, "put", value, version, int(1000 * ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return await self.ask(key, "remove" if version != ABSENT else "get", b"", version)

    async def ask(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        async with self._turn:
            sent = False
            try:
                await self._connection.connect()
                sent = True
                return await self.reply(key, *arguments)
            except (redis.RedisError, OSError) as error:
                await self._connection.disconnect(nowait=True)
                raise StoreUnavailable(f"no answer: {error}", sent=sent) from error
            except asyncio.CancelledError:
                await self._connection.disconnect(nowait=True)  # a reply may be under way
                raise

    async def reply(self, key: str, *arguments: str | bytes | int) -> Entry | None:
        await self._connection.send_command("EVAL", SCRIPT, 1, key, *arguments)
        value, version = await self._connection.read_response(disconnect_on_error=False)
        return None if version is None else Entry(value, int(version))

    async def aclose(self) -> None:
        await self._connection.disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


SharesWithItsChildren = wrong(
    Plain, "goes on with its parent's connection after a fork", know_the_process=("self._pid != os.getpid()", "False")
)


REFUSED = "test_a_refused_connection_is_not_sent"
GONE = "test_a_server_that_went_away_is_not_sent_to"
UNREACHABLE = "test_an_unreachable_server_is_given_up_in_time"
FROZEN = "test_a_request_without_an_answer_is_given_up_in_time"
FROZEN_BEFORE = "test_a_server_that_never_speaks_is_given_up_in_time"
CUT = "test_a_cut_connection_is_not_retried"
STRANGE = "test_another_protocol_is_an_error"
INTERRUPTED = "test_an_interrupted_request_leaves_no_reply_behind"
CLOSED = "test_a_closed_store_has_no_connection"
FORKED = "test_a_forked_child_has_connections_of_its_own"
TWICE = "test_a_store_is_closed_by_with_and_may_be_closed_again"
ALL = {REFUSED, GONE, UNREACHABLE, FROZEN, FROZEN_BEFORE, CUT, STRANGE, INTERRUPTED, CLOSED, FORKED, TWICE}
TIMED = ALL - {CUT, INTERRUPTED, CLOSED, FORKED, TWICE}
"""Of these, those in which a timeout may be waited for."""

WRONG_STORES: list[tuple[Make, set[str]]] = [
    (
        wrong(
            Plain,
            "lets client errors escape",
            ask=('StoreUnavailable(f"no answer: {error}", sent=sent) from error', ""),
        ),
        TIMED | {CUT},
    ),
    (RetriesByItself, {FROZEN, CUT}),
    (
        wrong(
            Plain,
            "has no timeout",
            connection=("socket_timeout=self._timeout, socket_connect_timeout=self._timeout", "socket_timeout=None"),
        ),
        {UNREACHABLE, FROZEN, FROZEN_BEFORE},
    ),
    (wrong(Plain, "never says that nothing was sent", ask=("sent=sent", "sent=True")), {REFUSED, GONE, UNREACHABLE}),
    (wrong(Plain, "always says that nothing was sent", ask=("sent=sent", "sent=False")), {FROZEN, CUT}),
    (KeepsConnections, {REFUSED, GONE, UNREACHABLE, INTERRUPTED, FORKED}),
    (
        wrong(
            Plain,
            "swallows interrupts",
            ask=("disconnect()\n            raise\n", "disconnect()\n            return None\n"),
        ),
        {INTERRUPTED},
    ),
    (wrong(Plain, "makes an outage of an interrupt", ask=("raise\n", "raise StoreUnavailable('')\n")), {INTERRUPTED}),
    (wrong(Plain, "leaves its connection open", close=("self._connection.disconnect()", "pass")), {CLOSED}),
    (wrong(Plain, "can be closed, but not by with", __exit__=("self.close()", "pass")), {CLOSED}),
    (HasNoWith, {TWICE}),
    (WatchesForEver, TIMED),
    (LeaksWhatItsListMeets, TIMED | {CUT}),
    (SharesWithItsChildren, {FORKED}),
    (
        wrong(Plain, "can't be closed twice", close=("disconnect()", "disconnect()\n    del self._connection")),
        {CLOSED, TWICE},
    ),
    (CannotBeClosed, {CLOSED}),
    (StaysAway, {GONE, FROZEN, FROZEN_BEFORE, CUT}),
    (TakesAnEndForAnAnswer, {CUT}),
    (wrong(AsyncPlain, "keeps a cancelled connection", ask=("asyncio.CancelledError", "GeneratorExit")), {INTERRUPTED}),
]

SKIPPED = "skipped: "


def verdict(make: Make, server: Server, test: str) -> str:
    """Run one test of the contract; give why it is red or was skipped, or nothing."""
    timeout = QUICK if test in TIMED else PATIENT

    def made(host: str, port: int) -> Store | AsyncStore:
        return make(host, port, PATIENT if port == server.port else timeout)

    method, store = getattr(StoreContract(), test), made(server.host, server.port)
    given = {
        "caslock_server": StoreServer(server.host, server.port, made, timeout),
        "caslock_clients": Clients(driven(store), driven(store), f"key:{uuid4().hex}"),
        "store": store,
    }
    try:
        method(**{name: given[name] for name in inspect.signature(method).parameters})
    except (AssertionError, AttributeError, TypeError, StoreUnavailable, redis.RedisError) as error:
        return f"{error!r} {getattr(error, '__notes__', '')}"
    except pytest.skip.Exception as reason:
        return f"{SKIPPED}{reason}"
    finally:
        with contextlib.suppress(AttributeError):  # raised by the store that can't be closed twice
            server_contract._close(store)
    return ""


@pytest.mark.parametrize("make", [Plain, AsyncPlain, Watcher, ConnectsEachTime])
@pytest.mark.parametrize("test", sorted(ALL))
def test_a_store_that_fails_well_passes(test: str, make: Make, redis_server: Server) -> None:
    """Without a fault of its own the same store passes; not tested are the fork of an asyncio store, and no `close`."""
    said = verdict(make, redis_server, test)
    skipped = (make, test) in {(AsyncPlain, FORKED), (ConnectsEachTime, TWICE)}
    assert said.startswith(SKIPPED) if skipped else said == ""


@pytest.mark.parametrize(("make", "tests"), [pytest.param(*each, id=each[0].__name__) for each in WRONG_STORES])
def test_a_store_that_fails_badly_is_found_out(
    make: Make, tests: set[str], redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turns exactly those tests red that ask for what it does wrong."""
    for module in (steps, trial):
        monkeypatch.setattr(module, "RECONNECT", 4.0)
    why = dict[str, str]()
    for test in ALL:
        WatchesForEver.over = threading.Event()
        try:
            for _ in range(3 if test in tests else 1):  # allowances for a busy machine may hide a wait
                why[test] = why.get(test) or verdict(make, redis_server, test)
        finally:
            WatchesForEver.over.set()
    assert red(why) == tests, why


def red(why: dict[str, str]) -> set[str]:
    return {test for test in why if why[test] and not why[test].startswith(SKIPPED)}


def test_a_parent_that_comes_late_still_asks_at_the_same_time_as_its_child(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a child could have its answers before its parent asks at all, and would share unseen."""

    def late(act: Callable[[], None]) -> Future[None]:
        time.sleep(0.5)
        return in_a_thread(act)

    monkeypatch.setattr(life_contract, "in_a_thread", late)
    assert verdict(Plain, redis_server, FORKED) == ""
    assert verdict(SharesWithItsChildren, redis_server, FORKED) != ""


def test_all_of_the_contract_of_a_server_is_on_trial() -> None:
    """No test of it is left out above, and each has been seen red."""
    names = {*dir(ServerContract), *dir(LifeContract)}
    assert {name for name in names if name.startswith("test_")} == ALL
    assert set().union(*(tests for _, tests in WRONG_STORES)) == ALL
