"""Which database, and by which driver: read from a URL, or from an engine of the user's."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import signature
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from caslock.stores.shared.options import TIMEOUT, check_timeout, no_other_options, timeout_of

_DRIVERS: Final = {
    "postgresql": {False: "psycopg", True: "psycopg"},
    "mysql": {False: "pymysql", True: "asyncmy"},
}
_WHOSE: Final = {"psycopg": "libpq", "pymysql": "PyMySQL"}
_OF_SQLALCHEMY: Final = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_check_hostname", "ssl_cipher", "ssl_key")
_NUMBERS: Final = frozenset(
    {
        *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("tcp_user_timeout", "read_timeout", "write_timeout", "max_allowed_packet"),
    }
)
_CHOICES: Final = {  # of libpq
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
}
_PORTS: Final = {"postgresql": 5432, "mysql": 3306}


class Target(NamedTuple):
    """Where the database is, and how to make an engine for it."""

    url: URL
    backend: str
    timeout: float
    given: Engine | AsyncEngine | None

    @property
    def location(self) -> str:
        """The place, without user and password."""
        query, host = self.url.query, self.url.host or ""
        if not host:
            where = query.get("unix_socket") or query.get("host") or "localhost"
            host = where if isinstance(where, str) else ",".join(where)
        host = f"[{host}]" if ":" in host and not host.startswith("/") else host
        port = self.url.port or query.get("port") or _PORTS[self.backend]
        return f"{self.backend}://{host}:{port}/{self.url.database or ''}"

    @property
    def secrets(self) -> list[str | None]:
        """What no error may show."""
        options = [value for name, value in self.url.query.items() if "pass" in name and isinstance(value, str)]
        return [str(self.url.password or ""), *options]


def target_of(target: str | URL | Engine | AsyncEngine, timeout: float | None, *, awaits: bool) -> Target:
    """Check what a store is made of; raises ValueError or TypeError, which show nothing of a URL."""
    given = None
    if isinstance(target, Engine | AsyncEngine):
        if isinstance(target, AsyncEngine) is not awaits:
            kind, other = ("AsyncEngine", "SQLStore") if awaits else ("Engine", "AsyncSQLStore")
            raise TypeError(f"this store needs an {kind} of SQLAlchemy; {other} takes the other kind")
        given, url, driver = target, target.url, target.dialect.driver
    elif isinstance(target, str | URL):
        url = _read(target)
        driver = url.drivername.partition("+")[2]
    else:
        raise TypeError(f"give a URL, or an engine of SQLAlchemy, not {type(target).__name__}")
    backend = {"mariadb": "mysql"}.get(url.get_backend_name(), url.get_backend_name())
    if backend not in _DRIVERS:
        instead = "; for a file of SQLite, give its URL: sqlite:///path" if backend == "sqlite" else ""
        raise ValueError(f"the database must be PostgreSQL, MySQL or MariaDB, not {backend}{instead}")
    known = _DRIVERS[backend][awaits]
    if driver not in ("", known):
        raise ValueError(f"this store needs the driver {known}: {backend}+{known}://")
    if given is None:
        options = {name: str(value) for name, value in url.query.items()}  # one that is given twice is a tuple
        timeout = timeout_of(options, timeout, "a database")
        url = url.difference_update_query(["timeout"])
        url = url.set(drivername=f"{backend}+{known}")
        usage = f"the options of a {backend}:// URL are ?timeout= and those of {_WHOSE.get(known, known)}"
        no_other_options(url.query, _options_of(known), usage)
        _check_values(url)
    return Target(url, backend, check_timeout("timeout", TIMEOUT if timeout is None else timeout), given)


def _read(target: str | URL) -> URL:
    if isinstance(target, str):  # SQLAlchemy leaves out what has no value
        for name, value in parse_qsl(target.rpartition("@")[2].partition("?")[2], keep_blank_values=True):
            if not value:
                raise ValueError(f"the option {name} of a database URL has no value")
    try:
        return make_url(target)
    except (ArgumentError, ValueError):
        raise ValueError(
            "this URL of a database can't be read: percent-encode what is reserved in a password, and check the port"
        ) from None


def _check_values(url: URL) -> None:
    """Raise ValueError for what the driver would refuse only when it connects."""
    for name in _NUMBERS & url.query.keys():
        value = url.query[name]
        if not (isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value)):
            raise ValueError(f"the option {name} of a database URL must be a whole number")
    for name in _CHOICES.keys() & url.query.keys():
        if url.query[name] not in _CHOICES[name]:
            raise ValueError(f"the option {name} of a database URL must be one of {', '.join(_CHOICES[name])}")


def _options_of(driver: str) -> list[str]:
    """Name what a URL may have for this driver, beside the timeout."""
    if driver == "psycopg":
        from psycopg import pq  # noqa: PLC0415 - an optional package

        return ["timeout", *(option.keyword.decode() for option in pq.Conninfo.get_defaults())]
    connection = import_module(f"{driver}.connection{'s' if driver == 'pymysql' else ''}").Connection
    return ["timeout", *signature(connection.__init__).parameters, *_OF_SQLALCHEMY]
