"""Where an ensemble is, and how to connect to it: read from a URL, or from a `KazooClient`."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from caslock.stores.shared.links import Endpoint, endpoints_of
from caslock.stores.shared.options import TIMEOUT, check_timeout, no_other_options, split_url, timeout_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = "/caslock"
"""The znode under which keys are kept, unless the user says otherwise."""

_PORT: Final = 2181
_TLS: Final = ("ca", "certfile", "keyfile", "keyfile_password", "check_hostname")
_PATH: Final = re.compile(r"(/(?!\.{1,2}(/|$))[^/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")
_FORM: Final = (
    "a ZooKeeper URL is zookeeper://user:password@host:port,host:port/path, or zookeepers:// for TLS, with ?timeout=;"
    " for TLS also ca=, certfile=, keyfile=, keyfile_password=, and check_hostname=no"
)


class Target(NamedTuple):
    """The servers, and who asks them."""

    hosts: Sequence[Endpoint]
    root: str
    """The znode under which keys are kept."""
    timeout: float
    """Seconds that a verb may take."""
    credentials: Sequence[tuple[str, str]] = ()
    """Schemes of authentication, and what they need, such as ("digest", "user:password")."""
    acl: Sequence[object] = ()
    """The access rights of new znodes."""
    tls: ssl.SSLContext | None = None

    @property
    def location(self) -> str:
        """The place, without a secret; the same text in whichever order the hosts were named."""
        hosts = ",".join(sorted(map(str, self.hosts)))
        return f"{'zookeepers' if self.tls else 'zookeeper'}://{hosts}{quote(self.root)}"


def target_of(target: str | KazooClient, timeout: float | None) -> Target:
    """Check what a store is made of; raises ValueError or TypeError, which show nothing of a URL."""
    if isinstance(target, str):
        return _of_url(target, timeout)
    if isinstance(target, KazooClient):
        return _of_client(target, check_timeout("timeout", TIMEOUT if timeout is None else timeout))
    raise TypeError(f"give a URL, or a KazooClient, not {type(target).__name__}")


def _of_url(url: str, timeout: float | None) -> Target:
    parts, options = split_url(url, "a ZooKeeper", _FORM)
    no_other_options(options, ("timeout", *(_TLS if parts.scheme == "zookeepers" else ())), _FORM)
    timeout = timeout_of(options, timeout, "a ZooKeeper")
    secure = parts.scheme == "zookeepers"
    user, at, hosts = parts.netloc.rpartition("@")
    # A password may have a colon; a user has none, or the server could not tell them apart.
    given = re.fullmatch("[^:]+:.+", user)
    root = unquote(parts.path).rstrip("/") or ROOT
    if (
        parts.scheme not in ("zookeeper", "zookeepers")
        or bool(at) != bool(given)
        or parts.fragment
        or options.get("check_hostname", "no") != "no"
    ):
        raise ValueError(_FORM)
    if not _PATH.fullmatch(root) or root.split("/")[1] == "zookeeper":
        raise ValueError("the path of a ZooKeeper URL names a znode, as in zookeeper://localhost:2181/locks")
    credentials = (("digest", unquote(user)),) if given else ()
    return Target(
        endpoints_of(hosts, _PORT, "ZooKeeper", _FORM),
        root,
        timeout,
        credentials,
        CREATOR_ALL_ACL if credentials else OPEN_ACL_UNSAFE,
        _context(options) if secure else None,
    )


def _of_client(client: Any, timeout: float) -> Target:  # noqa: ANN401 - kazoo comes without types
    if client._connection.sasl_options is not None:  # noqa: SLF001 - there is no other way to know
        raise ValueError("ZooKeeperStore has no SASL: use a KazooClient with auth_data, or TLS with a certificate")
    root = (client.chroot or "") + ROOT
    options = {name: getattr(client, name) for name in _TLS if getattr(client, name)}
    if client.use_ssl and not client.verify_certs:
        raise ValueError(
            "ZooKeeperStore verifies certificates: use a KazooClient with ca=, not with verify_certs=False"
        )
    if not client.check_hostname:
        options["check_hostname"] = "no"
    credentials = tuple(sorted(client.auth_data))
    acl = client.default_acl or (CREATOR_ALL_ACL if credentials else OPEN_ACL_UNSAFE)
    hosts = tuple(Endpoint(*each) for each in client.hosts)
    return Target(hosts, root, timeout, credentials, acl, _context(options) if client.use_ssl else None)


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        context.check_hostname = "check_hostname" not in options or options["check_hostname"] != "no"
        if "certfile" in options:
            # With a password of its own, a key never asks for one at the terminal.
            password = options.get("keyfile_password", "")
            context.load_cert_chain(options["certfile"], options.get("keyfile"), lambda: password)
    except OSError as error:  # ssl.SSLError is one; it names no file and shows no password
        why = error.strerror or error
        raise ValueError(f"ca, certfile, keyfile or keyfile_password can't be used ({why})") from None
    return context
