"""Where an etcd is, and how to reach it: read from a URL, without any I/O but that of the files with certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote

from caslock.stores.shared.links import FILES, Endpoint, endpoints_of, tls_of
from caslock.stores.shared.options import check_prefix, either, no_other_options, split_url, timeout_of

if TYPE_CHECKING:
    import ssl

_PORT: Final = 2379
_FORM: Final = (
    "an etcd URL is etcd://user:password@host:port,host:port, or etcds:// for TLS, "
    "with ?timeout=, ?prefix= and, for TLS, ?cacert=, ?cert= and ?key="
)


class Target(NamedTuple):
    """A cluster, and who asks it."""

    endpoints: tuple[Endpoint, ...]
    user: str
    password: str
    prefix: str
    timeout: float
    tls: ssl.SSLContext | None

    @property
    def location(self) -> str:
        """The place, without user and password; the same text in whatever order the members are named."""
        scheme = "etcds" if self.tls else "etcd"
        where = f"{scheme}://{','.join(sorted(map(str, self.endpoints)))}"
        return f"{where}?prefix={quote(self.prefix, safe=':/')}" if self.prefix else where


def target_of(url: str, prefix: str, timeout: float | None) -> Target:
    """Read a URL; raises ValueError or TypeError, which show nothing of it."""
    check_prefix(prefix)
    parts, options = split_url(url, "an etcd", _FORM)
    if parts.scheme not in ("etcd", "etcds") or parts.path.strip("/") or parts.fragment:
        raise ValueError(_FORM)
    no_other_options(options, ("timeout", "prefix", *(FILES if parts.scheme == "etcds" else ())), _FORM)
    timeout = timeout_of(options, timeout, "an etcd")
    prefix = either("prefix", options.pop("prefix", ""), prefix)
    prefix.encode()  # a lone surrogate is a ValueError
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, password = user.partition(":")
    if at and not (name and colon and password):
        raise ValueError("an etcd URL has both a user and a password, or neither")
    return Target(
        endpoints=endpoints_of(hosts, _PORT, "etcd", _FORM),
        user=unquote(name),
        password=unquote(password),
        prefix=prefix,
        timeout=timeout,
        tls=tls_of(options, "an etcd URL") if parts.scheme == "etcds" else None,
    )
