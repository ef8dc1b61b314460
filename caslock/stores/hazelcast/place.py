"""Where a map is, and how to reach it: read from a URL."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from caslock.options import check_address, check_timeout, no_other_options, options_of, seconds_of

TIMEOUT: Final = 2.0
"""Seconds that a verb may take, unless the user says otherwise."""

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


class Place(NamedTuple):
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


def place_of(url: str, timeout: float | None) -> Place:
    """Read a URL; raises ValueError or TypeError, which show nothing of it."""
    if not isinstance(url, str):
        raise TypeError(f"the URL of a Hazelcast must be a str, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        options = options_of(parts.query)
    except ValueError as error:
        raise ValueError(str(error) if "given twice" in str(error) else _FORM) from None
    no_other_options(options, ("timeout", "cluster"), _FORM)
    if "timeout" in options:
        if timeout is not None:
            raise ValueError("give the timeout once: in the URL, or as an argument")
        timeout = seconds_of(options.pop("timeout"), "a Hazelcast")
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
    return Place(
        members=tuple(dict.fromkeys(_member(host) for host in hosts.split(","))),
        map=name,
        cluster=cluster,
        user=unquote(given[1]) if given else "",
        password=unquote(given[2]) if given else "",
        timeout=check_timeout("timeout", TIMEOUT if timeout is None else timeout),
    )


def _member(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
    except ValueError:
        raise ValueError(_FORM) from None
    check_address(parts, "Hazelcast", "separate several by commas")
    if not parts.hostname:
        raise ValueError(_FORM)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or _PORT}"
