"""Where a map is, and how to reach it: read from a URL."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from caslock.stores.shared.links import endpoints_of
from caslock.stores.shared.options import no_other_options, split_url, timeout_of

MAP: Final = "caslock"
"""The map that keeps the entries, unless the user says otherwise."""

CLUSTER: Final = "dev"
"""The name that Hazelcast gives a cluster, unless the user says otherwise."""

_PORT: Final = 5701
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_FORM: Final = (
    "a Hazelcast URL is hazelcast://user:password@host:port,host:port/map, with ?cluster= (the cluster's name) and "
    "?timeout=; the name of a map has up to 100 letters, digits and _ . : -"
)


class Target(NamedTuple):
    """A map, and who asks for it."""

    members: tuple[str, ...]
    map: str
    cluster: str
    user: str
    password: str
    timeout: float

    @property
    def location(self) -> str:
        """The place, without user and password; the same text in whatever order the members are named."""
        cluster = "" if self.cluster == CLUSTER else f"?cluster={quote(self.cluster)}"
        return f"hazelcast://{','.join(sorted(self.members))}/{self.map}{cluster}"


def target_of(url: str, timeout: float | None) -> Target:
    """Read a URL; raises ValueError or TypeError, which show nothing of it."""
    parts, options = split_url(url, "a Hazelcast", _FORM)
    no_other_options(options, ("timeout", "cluster"), _FORM)
    timeout = timeout_of(options, timeout, "a Hazelcast")
    cluster = options.pop("cluster", CLUSTER)
    name = unquote(parts.path).removeprefix("/").removesuffix("/") or MAP
    user, at, hosts = parts.netloc.rpartition("@")
    given = re.fullmatch("([^:]+):(.+)", user)
    if (
        parts.scheme != "hazelcast"
        or parts.fragment
        or not cluster
        or not _NAME.fullmatch(name)
        or bool(at) != bool(given)
    ):
        raise ValueError(_FORM)
    return Target(
        members=tuple(map(str, endpoints_of(hosts, _PORT, "Hazelcast", _FORM))),
        map=name,
        cluster=cluster,
        user=unquote(given[1]) if given else "",
        password=unquote(given[2]) if given else "",
        timeout=timeout,
    )
