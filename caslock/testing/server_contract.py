"""A server that can't be reached, freezes or hangs up: a part of `StoreContract`.

The kit puts its fault proxy between the store and its real server.  Each verb is tried with a store, and so with a
connection, of its own.  Every fault must come out as `StoreUnavailable`, within the store's timeout and at once: a
client that retries by itself hides that a request may have been applied twice.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from uuid import uuid4

import pytest

from caslock.errors import StoreError, StoreUnavailable
from caslock.testing.drive import driven, is_async, on_loop
from caslock.testing.proxy import PASS, FaultProxy, Passage, foreign_port, refused_port, unreachable_port
from caslock.testing.steps import again, put
from caslock.testing.trial import TRIES, Trial, can, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.store import AsyncClosableStore, AsyncStore, ClosableStore, Store
    from caslock.testing.proxy import Kind

_LOOPBACK: Final = "127.0.0.1"

_ANSWERS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    lambda _: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    lambda _: b"\x15\x03\x03\x00\x02\x02\x46",  # a TLS alert: protocol version
    lambda _: bytes(range(256)),
)
"""What servers of other kinds say: one of HTTP, one of TLS, and one that makes no sense."""


class StoreServer(NamedTuple):
    """The server of a store, and how to make a store that looks for it at another address."""

    host: str
    """Its name or address."""
    port: int
    """Its port."""
    make: Callable[[str, int], Store | AsyncStore]
    """Makes a store whose server is at this host and port, with no other way to find it."""
    timeout: float
    """Seconds after which such a store gives up one request, or one attempt to connect."""


class ServerContract:
    """Tests of what a store does when its server fails."""

    @pytest.fixture
    def caslock_server(self) -> StoreServer | None:
        """Give the `StoreServer`; override it, by one that gives None if the store has no server."""
        pytest.skip(
            "no fixture caslock_server: what the store does when its server can't be reached, freezes or hangs up was "
            "not tried"
        )

    def test_a_refused_connection_is_not_sent(self, caslock_server: StoreServer | None) -> None:
        """If nothing listens, each verb raises ``StoreUnavailable(sent=False)``: else its outcome seems unknown."""
        with refused_port() as port:
            _each_verb(caslock_server, _must_not_be_sent, port=port)

    def test_a_server_that_went_away_is_not_sent_to(self, caslock_server: StoreServer | None) -> None:
        """After a cut connection, too, `sent` is False; the store reconnects when the server is back."""

        def go_away(trial: Trial) -> None:
            trial.prepare()
            again(lambda: trial.store.get(trial.key))
            with trial.proxy.refusing():
                with contextlib.suppress(StoreUnavailable):  # it may not know yet that its connection is cut
                    trial.within_timeout(lambda: trial.store.get(trial.key))
                trial.must_not_be_sent()
            trial.must_answer_rightly()

        _each_verb(caslock_server, go_away)

    def test_an_unreachable_server_is_given_up_in_time(self, caslock_server: StoreServer | None) -> None:
        """If connections are neither accepted nor refused, each verb says within its timeout that nothing was sent."""
        with contextlib.ExitStack() as stack:
            try:
                port = stack.enter_context(unreachable_port())
            except OSError as error:
                pytest.skip(f"no unreachable port can be made here: {error}")
            _each_verb(caslock_server, _must_not_be_sent, port=port)

    def test_a_request_without_an_answer_is_given_up_in_time(self, caslock_server: StoreServer | None) -> None:
        """Each verb raises StoreUnavailable within its timeout, and the client below sends no second request."""

        def freeze(trial: Trial) -> None:
            trial.learn()
            sent, error = list[bytes](), cast("StoreUnavailable | None", None)

            def swallow(request: bytes) -> Passage:
                sent.append(request)
                named = trial.mark in request or not trial.named  # else a greeting, which may be answered
                return Passage("drop request") if named else PASS

            for _ in range(TRIES):  # on a busy machine the timeout may expire before it is sent
                trial.prepare()
                sent.clear()
                trial.proxy.decide = swallow
                error = trial.must_fail()
                times = sum(trial.mark in request for request in sent)
                assert times <= 1, f"the client below has sent the request {times} times"
                trial.must_answer_rightly()
                if error is None or error.sent or times or (sent and not trial.named):
                    break
            assert error is None or error.sent, f"sent is False, but it was sent (or never, in {TRIES} tries)"

        _each_verb(caslock_server, freeze)

    def test_a_server_that_never_speaks_is_given_up_in_time(self, caslock_server: StoreServer | None) -> None:
        """A server that accepts a connection, and then says nothing at all, is not waited for any longer.

        Its connection is closed, and not left to the garbage collector.
        """

        def freeze(trial: Trial) -> None:
            trial.prepare()
            trial.proxy.decide = lambda _: Passage("drop request")
            trial.must_fail()
            trial.must_be_disconnected("after a request to which the server said nothing")
            trial.must_answer_rightly()

        with _uncollected():
            _each_verb(caslock_server, freeze)

    def test_another_protocol_is_an_error(self, caslock_server: StoreServer | None) -> None:
        """At a server that is not one of the store's, each verb raises StoreError or StoreUnavailable, in time."""
        for answer in _ANSWERS:
            with foreign_port(answer) as port:
                _each_verb(caslock_server, Trial.must_be_refused, port=port, failure=StoreError)

    def test_a_cut_connection_is_not_retried(self, caslock_server: StoreServer | None) -> None:
        """One fault is one StoreUnavailable, even if a retry would succeed; a broken reply is thrown away."""
        kinds: tuple[Kind, ...] = ("cut before", "cut reply", "cut after")

        def cut(trial: Trial) -> None:
            for kind in kinds:
                for number in trial.learn():
                    error: StoreUnavailable | None = None
                    for _ in range(TRIES):  # on a busy machine the timeout may expire before it is sent
                        trial.prepare()
                        struck = trial.strike(number, Passage(kind))
                        try:
                            error = trial.must_fail(unless_right=trial.verb == "put_when_absent")
                        except AssertionError as failure:
                            if struck:
                                failure.add_note(f"{kind}, in request {number} of the verb")
                                raise
                            error = None  # it has made fewer requests than before
                        trial.must_answer_rightly()
                        if struck or error is None or error.sent:
                            break
                    assert error is None or error.sent, f"{kind}: sent is False, but it was sent (or never)"

        _each_verb(caslock_server, cut)

    def test_an_interrupted_request_leaves_no_reply_behind(self, caslock_server: StoreServer | None) -> None:
        """After Ctrl-C, or a cancellation, the next request gets its own answer, not that of the interrupted one."""

        def interrupt(trial: Trial) -> None:
            trial.skip_unless_interruptible()
            other = f"contract:{uuid4().hex}"
            entry = again(partial(put, trial.direct, other, b"another"))
            for number in trial.learn():
                trial.interrupt(number)
                for _ in range(3):
                    assert trial.reconnected(lambda: trial.store.get(other)) == entry
                trial.must_answer_rightly()
            again(partial(trial.direct.invalidate, other, entry.version))

        _each_verb(caslock_server, interrupt, one_by_one=True)

    def test_a_closed_store_has_no_connection(self, caslock_server: StoreServer | None) -> None:
        """After ``with``, or ``async with``, no connection is left.

        A store that keeps no connection between its requests needs neither.
        """

        def close(trial: Trial) -> None:
            trial.learn()
            assert trial.proxy.accepted, "it answers without a connection to the address that it was given"
            name = "aclose" if is_async(trial.raw) else "close"
            when = f"after {name}()" if hasattr(trial.raw, name) else f"after its last request: it needs {name}()"
            _close(trial.raw)
            trial.must_be_disconnected(when)

        _each_verb(caslock_server, close)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Have no garbage collected."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _must_not_be_sent(trial: Trial) -> None:
    trial.prepare()
    trial.must_not_be_sent()
    trial.clean()


def _each_verb(
    server: StoreServer | None,
    act: Callable[[Trial], None],
    *,
    port: int | None = None,
    failure: type[StoreError] = StoreUnavailable,
    one_by_one: bool = False,
) -> None:
    """Act with every verb that the store has, all at the same time, unless `one_by_one`.

    The store goes through a proxy, or to `port` if that is given; then it may also fail by `failure` as soon as it is
    made.
    """
    if server is None:
        pytest.skip("the fixture caslock_server gave None: the store has no server that could fail")

    def one(verb: str) -> None:
        try:
            with FaultProxy(server.host, server.port) as proxy:
                raw = _made(server, proxy.port) if port is None else _made(server, port, failure)
                if raw is not None:
                    try:
                        act(Trial(verb, server.timeout, proxy, raw, driven(direct)))
                    finally:
                        _close(raw)
        except BaseException as error:
            error.add_note(f"in the trial of {verb}")
            raise

    direct = server.make(server.host, server.port)
    try:
        until_answered(driven(direct))
        verbs = again(lambda: can(driven(direct)))
        with ThreadPoolExecutor(len(verbs)) as threads:
            for _ in map(one, verbs) if one_by_one else threads.map(one, verbs):
                pass
    finally:
        _close(direct)


def _made(server: StoreServer, port: int, failure: type[StoreError] | tuple[()] = ()) -> Store | AsyncStore | None:
    """Make a store; None if it said at once, by `failure`, that it can't connect."""
    try:
        return server.make(_LOOPBACK, port)
    except failure as error:
        if isinstance(error, StoreUnavailable) and error.sent:
            raise
        return None


def _close(store: Store | AsyncStore) -> None:
    """Close a store, by `with` if it has that."""
    if is_async(store):
        on_loop(_aclose(cast("AsyncClosableStore", store)))
        return
    if hasattr(store, "__exit__"):
        with cast("ClosableStore", store):
            pass
    else:
        getattr(store, "close", lambda: None)()


async def _aclose(store: AsyncClosableStore) -> None:
    if hasattr(store, "__aexit__"):
        async with store:
            pass
    elif hasattr(store, "aclose"):
        await store.aclose()
