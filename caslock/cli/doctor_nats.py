"""What the servers and the bucket of a NATS mean for locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caslock.cli.finding import danger, note, warning
from caslock.stores.nats.failures import Failures
from caslock.stores.nats.requests import Verbs
from caslock.stores.nats.servers import Servers
from caslock.stores.nats.target import target_of
from caslock.stores.shared.connections import run
from caslock.stores.shared.links import SocketLink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding

_PAIR: Final = 2


def examine(url: str) -> Iterator[Finding]:
    """Ask for the bucket; raises `StoreError` where no server answers."""
    target = target_of(url, None)
    verbs = Verbs(target.bucket)
    servers = Servers(target, verbs, Failures(target.location), SocketLink)
    try:
        about = run(servers.run(verbs.about()))
    finally:
        servers.end()
    if about is None:
        yield note("there is no bucket", "the first lock makes it, with the replicas that its URL names")
        return
    settings, cluster = about["config"], about.get("cluster", {})
    if settings.get("storage") == "memory" and settings["num_replicas"] == 1:
        yield danger("its bucket is in memory", "a restart loses all leases, and fences go back", "Make it in files")
    if settings["num_replicas"] == 1:
        yield note("its bucket has one replica", "while that server is down, no lock can be acquired")
    elif settings["num_replicas"] == _PAIR:
        yield warning("its bucket has two replicas", "without either of them, no lock can be acquired", "Use three")
    for replica in cluster.get("replicas") or []:
        if replica.get("offline") or not replica.get("current"):
            what = f"the replica on {replica.get('name')} is {'offline' if replica.get('offline') else 'behind'}"
            yield warning(what, "if others fail, too, no lock can be acquired", "See the log of that server")
    if not verbs.tells(settings):
        cure = f"Let the stream {verbs.stream} republish $KV.{target.bucket}.> to $CASLOCK.{target.bucket}.>"
        yield note("its bucket does not republish changes", "waiters poll", cure)
