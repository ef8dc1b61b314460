"""The members of a cluster: which of them is asked, with which token, and what follows from its answer.

Written once, for asyncio.  Code that blocks runs it to its end in one step, because its links never suspend.

A verb is never sent twice, unless its first packet was certainly not applied: because no connection could be made, or
because the member said that it has no leader or does not know who asks.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.errors import StoreUnavailable
from caslock.process.guards import on_failure
from caslock.stores.etcd.failures import NO_TOKEN, NOT_HERE, TooOld
from caslock.stores.etcd.requests import Refused
from caslock.stores.etcd.wire import Call, Reply, Stream, exchange
from caslock.stores.shared.links import Link, Pool
from caslock.stores.shared.verbs import follow

if TYPE_CHECKING:
    from caslock.stores.etcd.failures import Failures
    from caslock.stores.etcd.requests import Verb, Verbs
    from caslock.stores.etcd.target import Target
    from caslock.stores.etcd.wire import Replies
    from caslock.stores.shared.links import Endpoint

L = TypeVar("L", bound=Link)
T = TypeVar("T")

_OLDEST: Final = (3, 4)
_TURNS: Final = 2  # how often a token is renewed for one packet


class Members(Pool[L]):
    """The connections of one store, for asyncio those of one event loop."""

    def __init__(self, target: Target, failures: Failures, kind: type[L]) -> None:
        """Open nothing yet."""
        super().__init__(target.endpoints, failures)
        self._target, self._kind = target, kind
        self._token = ""

    async def run(self, verb: Verb[T]) -> T:
        """Run a verb to its end; raises what an error means, within the timeout."""
        ends = monotonic() + self._target.timeout
        first = next(verb)
        try:
            return await follow(verb, lambda calls: self._ask(calls, ends), first)
        except (Refused, LookupError, TypeError, ValueError) as error:  # after the first: answers that make no sense
            raise self._failures.of(error, sent=True) from error

    async def wait_while(self, verbs: Verbs, key: str, version: int, timeout: float) -> None:
        """Watch from the next revision on; if etcd has compacted that away, look, and watch from now on."""
        until = monotonic() + timeout
        revision = version + 1
        with self.waiters.one_more(self._failures.cannot_wait()):
            while compacted := await self._watch(verbs.watch(key, revision), until):
                revision, entry = await self.run(verbs.look(key, compacted))
                if entry is None or entry.version != version:
                    return

    async def _watch(self, call: Call, until: float) -> int:
        """Wait for a change until then, and return 0, or the revision up to which there is no history any more."""
        ends = monotonic() + self._target.timeout
        if self._target.user and not self._token:
            await self._authenticate(ends)
        link = await self.connect(self._open, ends)
        begun = False
        try:
            stream = Stream(call, self._headers(link))
            await link.send(stream.packet, ends)
            while True:
                for reply in stream.feed(await link.receive(until if begun else ends)):
                    result = reply.body.get("result", {})
                    if reply.refused or (result.get("canceled") and not result.get("compact_revision")):
                        raise self._refused(reply)  # noqa: TRY301 - all errors are read in one place
                    if result.get("events") or result.get("canceled"):
                        return int(result.get("compact_revision", 0))
                    begun = True
        except TimeoutError as error:
            if begun:
                return 0
            raise self._failures.of(error, sent=True) from error
        except Exception as error:
            raise self._failures.of(error, sent=True) from error
        finally:
            link.close()

    def _refused(self, reply: Reply) -> Refused:
        """Return the error of a watch that the server has cancelled; it does not say whether our token is too old."""
        self._token = ""
        reason = reply.body.get("result", {}).get("cancel_reason")
        return Refused(reply._replace(body={"message": reason}) if reason else reply)

    async def _ask(self, calls: list[Call], ends: float) -> list[Reply]:
        """Send one packet, and return the answers."""
        turns = len(self._target.endpoints) + _TURNS
        while True:
            if self._target.user and not self._token:
                await self._authenticate(ends)
            token = self._token
            replies = await self._exchange(calls, ends)
            turns -= 1
            said = replies[0].message if replies[0].refused else ""
            if not turns or monotonic() >= ends:
                return replies
            if said in NO_TOKEN and self._target.user:
                self._token = "" if self._token == token else self._token  # else another request has a new one
            elif any(each in said for each in NOT_HERE) and len(self._target.endpoints) > 1:
                self.leave()
            else:
                return replies

    async def _authenticate(self, ends: float) -> None:
        asked = Call("/v3/auth/authenticate", {"name": self._target.user, "password": self._target.password})
        try:
            (reply,) = await self._exchange([asked], ends)
        except StoreUnavailable as error:
            raise self._failures.of(error.__cause__ or error, sent=False) from error
        if reply.refused:
            raise self._failures.of(Refused(reply), sent=False)
        self._token = str(reply.body.get("token", ""))

    async def _exchange(self, calls: list[Call], ends: float) -> list[Reply]:
        link = self.idle.take() or await self.connect(self._greet, ends)
        try:
            with on_failure(link.close):
                found = await self._talk(link, calls, ends)
        except Exception as error:
            self.leave(link.endpoint)
            raise self._failures.of(error, sent=True) from error
        if found.reusable:
            self.idle.keep(link)
        else:
            link.close()
        return found.replies

    async def _talk(self, link: L, calls: list[Call], ends: float) -> Replies:
        steps = exchange(calls, self._headers(link))
        try:
            await link.send(next(steps), ends)
            while True:
                steps.send(await link.receive(ends))
        except StopIteration as done:
            found: Replies = done.value
            return found

    async def _open(self, endpoint: Endpoint, ends: float) -> L:
        return await self._kind.open(endpoint, self._target.tls, ends)

    async def _greet(self, endpoint: Endpoint, ends: float) -> L:
        link = await self._open(endpoint, ends)
        with on_failure(link.close):
            _check(*(await self._talk(link, [Call("/version")], ends)).replies)
        return link

    def _headers(self, link: L) -> dict[str, str]:
        """Have a member that knows no leader refuse at once, for then nothing is applied."""
        own = {"Authorization": self._token} if self._token else {}
        return {"Host": str(link.endpoint), "Grpc-Metadata-hasleader": "true", **own}


def _check(reply: Reply) -> None:
    """Raise TooOld unless the server is an etcd with the gateway that we know."""
    if reply.refused:
        raise TooOld(reply.message)
    version = str(reply.body.get("etcdserver", ""))
    numbers = [int(number) for number in version.split(".")[:2] if number.isdigit()]
    if tuple(numbers) < _OLDEST:
        raise TooOld(f"it says that it is version {version or 'unknown'}"[:100])
