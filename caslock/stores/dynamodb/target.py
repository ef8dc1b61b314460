"""Which table of which region, and the settings of a client for it: read from a URL or from a client of the user's."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

import botocore.session
from botocore.config import Config
from botocore.loaders import create_loader

from caslock.stores.shared.options import TIMEOUT, check_timeout, no_other_options, split_url, timeout_of

Client: TypeAlias = Any  # of botocore or aiobotocore: they ship no types

TABLE: Final = "caslock"
"""The table, unless the user names another."""

_CONNECTIONS: Final = 64  # kept by one client; more are opened if more requests run at once
_FORM: Final = (
    "a DynamoDB URL is dynamodb://region/table, with ?timeout= and, for another server than that of AWS, "
    "?endpoint=http://host:port"
)
_REGION: Final = re.compile(r"[a-z]+(-[a-z]+)+-\d+")
_OF_AWS: Final = re.compile(r"https://[^/]+\.(amazonaws\.com(\.cn)?|api\.aws)/?")


class Target(NamedTuple):
    """A table, and how to reach it."""

    region: str
    table: str
    endpoint: str
    """The URL of another server than that of AWS; "": there is none."""
    timeout: float
    client: Client = None
    """The user's, whose settings are used; None: there is none."""

    @property
    def location(self) -> str:
        """The place: the same text in every process."""
        where = f"dynamodb://{self.region}/{self.table}"
        return f"{where}?endpoint={quote(self.endpoint, safe=':/')}" if self.endpoint else where

    def client_settings(self, kind: type[Config]) -> dict[str, Any]:
        """Return the arguments of ``create_client``, with a config of this `kind`.

        To connect and to read may each take a half of the time.  A client does not send a request twice.
        """
        share = self.timeout / 2
        config = kind(
            connect_timeout=share,
            read_timeout=share,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=_CONNECTIONS,
            parameter_validation=False,
        )
        settings: dict[str, Any] = {
            "service_name": "dynamodb",
            "region_name": self.region,
            "endpoint_url": self.endpoint or None,
        }
        if self.endpoint.startswith("http:"):
            settings["verify"] = False  # aiobotocore would read all certificates first
        elif self.client is not None:
            settings["verify"] = self.client._endpoint.http_session._verify  # noqa: SLF001 - there is no other way
        return {**settings, "config": config if self.client is None else self.client.meta.config.merge(config)}

    def new_client(self) -> Client:
        """Make a client that blocks."""
        return self.prepare(botocore.session.Session()).create_client(**self.client_settings(Config))

    def prepare(self, session: Any) -> Any:  # noqa: ANN401 - of botocore or aiobotocore
        """Have a session of botocore look for credentials in time, or take those of the user's client; return it."""
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        session.set_config_variable("metadata_service_timeout", max(1, round(self.timeout / 4)))  # whole seconds only
        if self.client is not None:
            session._credentials = self.client._get_credentials()  # noqa: SLF001 - as above; they renew themselves
        return session


@cache
def _loader(path: str | None) -> object:
    """Share the descriptions of AWS's services: to read them for each client makes its first request 40 ms longer."""
    return create_loader(path)


def target_of(target: str | Client, table: str | None, timeout: float | None, *, awaits: bool = False) -> Target:
    """Read a URL, or ask a client; raises ValueError or TypeError, which show no value of an option.

    `awaits`: a client is to be one of aiobotocore.
    """
    if isinstance(target, str):
        return _of_url(target, table, timeout)
    if getattr(getattr(getattr(target, "meta", None), "service_model", None), "service_name", "") != "dynamodb":
        raise TypeError(f"expected a URL (str) or a client of DynamoDB, not {type(target).__name__}")
    if awaits != any(kind.__module__.startswith("aiobotocore.") for kind in type(target).__mro__):
        message = "an AsyncDynamoDBStore takes a client of aiobotocore, and a DynamoDBStore one of boto3"
        raise TypeError(f"{message}; a URL serves both")
    endpoint = str(target.meta.endpoint_url)
    return Target(
        region=target.meta.region_name,
        table=_checked(TABLE if table is None else table),
        endpoint="" if _OF_AWS.fullmatch(endpoint) else _endpoint(endpoint),
        timeout=check_timeout("timeout", TIMEOUT if timeout is None else timeout),
        client=target,
    )


def _of_url(url: str, table: str | None, timeout: float | None) -> Target:
    parts, options = split_url(url, "a DynamoDB", _FORM)
    if parts.scheme != "dynamodb" or parts.fragment or not re.fullmatch(r"[a-z0-9-]+", parts.netloc):
        raise ValueError(_FORM)
    no_other_options(options, ("timeout", "endpoint"), _FORM)
    if "endpoint" not in options and not _REGION.fullmatch(parts.netloc):
        raise ValueError(f"{parts.netloc} is no region of AWS, such as eu-central-1: {_FORM}")
    timeout = timeout_of(options, timeout, "a DynamoDB")
    in_url = parts.path.strip("/")
    if in_url and table is not None:
        raise ValueError("give the table once: in the URL, or as an argument")
    return Target(
        region=parts.netloc,
        table=_checked(in_url or (TABLE if table is None else table)),
        endpoint=_endpoint(options["endpoint"]) if "endpoint" in options else "",
        timeout=timeout,
    )


def _checked(table: object) -> str:
    if not isinstance(table, str):
        raise TypeError(f"table must be a str, not {type(table).__name__}")
    if not re.fullmatch("[A-Za-z0-9_.-]{3,255}", table):
        raise ValueError("a table of DynamoDB has a name of 3 to 255 letters, digits, dots, - and _")
    return table


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    try:
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("the endpoint of a DynamoDB is http://host:port or https://host:port")
    return url.rstrip("/")
