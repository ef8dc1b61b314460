"""Where a bucket is, and how to reach it: read from a URL, without any I/O but that of the files with certificates."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from caslock.stores.shared.links import FILES, Endpoint, endpoints_of, tls_of
from caslock.stores.shared.options import no_other_options, split_url, timeout_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

BUCKET: Final = "caslock"
"""The bucket, unless the user names another."""

_PORT: Final = 4222
_FORM: Final = (
    "a NATS URL is nats://user:password@host:port,host:port/bucket, nats://token@host, or natss:// for TLS, "
    "with ?timeout=, ?replicas=, ?creds= and, for TLS, ?cacert=, ?cert= and ?key="
)
_SEED: Final = re.compile("SU[A-Z2-7]{56}")
_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+(\S+)")


class Target(NamedTuple):
    """A bucket, and who asks for it."""

    endpoints: tuple[Endpoint, ...]
    credentials: Mapping[str, str]
    """In the words of the server's CONNECT."""
    creds: str
    """A file with a JWT and the seed of a key, or with a seed only; "" if there is none."""
    bucket: str
    replicas: int
    """How many servers keep the bucket if the store makes it."""
    timeout: float
    tls: ssl.SSLContext | None

    @property
    def location(self) -> str:
        """The place, without a secret; the same text in whatever order the servers are named."""
        return f"nats{'s' if self.tls else ''}://{','.join(sorted(map(str, self.endpoints)))}/{self.bucket}"


def target_of(url: str, timeout: float | None) -> Target:
    """Read a URL; raises ValueError or TypeError, which show nothing of it."""
    parts, options = split_url(url, "a NATS server", _FORM)
    if parts.scheme not in ("nats", "natss") or parts.fragment:
        raise ValueError(_FORM)
    no_other_options(options, ("timeout", "replicas", "creds", *(FILES if parts.scheme == "natss" else ())), _FORM)
    timeout = timeout_of(options, timeout, "a NATS")
    replicas = options.pop("replicas", "1")
    if replicas not in ("1", "2", "3", "4", "5"):
        raise ValueError("the replicas of a NATS bucket must be a number from 1 to 5")
    bucket = unquote(parts.path).strip("/") or BUCKET
    if not re.fullmatch("[A-Za-z0-9_-]{1,200}", bucket):
        raise ValueError("the path of a NATS URL names a bucket, of letters, digits, - and _")
    creds = options.pop("creds", "")
    user, at, hosts = parts.netloc.rpartition("@")
    return Target(
        endpoints=endpoints_of(hosts, _PORT, "NATS", _FORM),
        credentials=_credentials(user, creds) if at or creds else {},
        creds=creds,
        bucket=bucket,
        replicas=int(replicas),
        timeout=timeout,
        tls=tls_of(options, "a NATS URL") if parts.scheme == "natss" else None,
    )


def signed(creds: str, nonce: str) -> dict[str, str]:
    """Sign what the server has sent, with the key of a file; raises ValueError, which shows nothing of the file."""
    try:
        import nkeys  # noqa: PLC0415 - nothing else needs it
    except ImportError as error:
        raise ModuleNotFoundError(
            "?creds= of a NATS URL needs the package nkeys: pip install 'caslock[nats]'", name=error.name
        ) from error
    text = problem = ""
    try:
        text = Path(creds).read_text(encoding="ascii")
    except OSError as error:
        problem = str(error.strerror)
    except UnicodeDecodeError:
        pass
    if problem:  # raised here, because its context would name the file, and `connect` shows no value of ?creds=
        raise ValueError(f"the file of ?creds= in a NATS URL can't be used: {problem}")
    seed, jwt = _SEED.search(text), _JWT.search(text)
    try:
        key = nkeys.from_seed(bytearray(seed[0].encode() if seed else b""))
        signature = urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
    except Exception:  # noqa: BLE001 - it raises errors of many kinds
        raise ValueError("the file of ?creds= in a NATS URL has no seed of a user's key") from None
    return {"sig": signature, **({"jwt": jwt[1]} if jwt else {"nkey": key.public_key.decode()})}


def _credentials(text: str, creds: str) -> dict[str, str]:
    if creds:
        if text:
            raise ValueError("a NATS URL has either ?creds=, or a user or token")
        signed(creds, "")
        return {}
    name, colon, password = text.partition(":")
    if not name or (colon and not password):
        raise ValueError("a NATS URL has both a user and a password, or a token, or none of them")
    return {"user": unquote(name), "pass": unquote(password)} if colon else {"auth_token": unquote(name)}
