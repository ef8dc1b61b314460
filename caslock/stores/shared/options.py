"""Checks of the options of stores.  No error shows the value of an option in a URL: it may be secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

TIMEOUT: Final = 2.0
"""Seconds that a verb may take at a server, unless the user says otherwise."""

LONGEST: Final = 86_400
"""Seconds; the longest timeout of a request."""

_PORTS: Final = range(1, 65_536)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SEVERAL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#\s]*,[^/?#\s]*)(.*)", re.DOTALL)


def either(name: str, in_url: T, argument: T) -> T:
    """Return the setting of a URL or of an argument; raises ValueError if both have it."""
    if in_url and argument:
        raise ValueError(f"give {name} in the URL or as an argument, not both")
    return in_url or argument


def options_of(query: str) -> dict[str, str]:
    """Read the query of a URL; raises ValueError for an option that is given twice."""
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    for name in options:
        if [each for each, _ in pairs].count(name) > 1:
            what = f"the option {name}" if _is_word(name) else "an option"
            raise ValueError(f"{what} is given twice in the URL")
    return options


def split_url(url: str, what: str, form: str) -> tuple[SplitResult, dict[str, str]]:
    """Split a URL, and read its options; `form` is what a URL that can't be read should look like."""
    if not isinstance(url, str):
        raise TypeError(f"the URL of {what} must be a str, not {type(url).__name__}")
    try:
        parts = split(url)
    except ValueError:
        raise ValueError(form) from None
    return parts, options_of(parts.query)


def split(url: str) -> SplitResult:
    """Split a URL as `urlsplit` does, but leave it to the caller to check each server where it names several.

    Recent versions of Python (3.14.8, for one) refuse a list in which one server has an IPv6 address.
    """
    try:
        return urlsplit(url)
    except ValueError:
        several = _SEVERAL.fullmatch(url)
        if several is None:
            raise
        scheme, servers, rest = several.groups()
        return urlsplit(scheme + rest)._replace(netloc=servers)


def no_other_options(options: Iterable[str], known: Iterable[str], form: str) -> None:
    """Raise ValueError, with the form of a URL, if it has an option that is not a known one."""
    from difflib import get_close_matches  # noqa: PLC0415 - not for `import caslock`

    known = tuple(known)
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"{form}; there is no option {name}{meant}" if _is_word(name) else form)


def _is_word(name: str) -> bool:
    """Whether the name of an option is one, and not a part of a password."""
    return name.isidentifier() and len(name) <= 40  # noqa: PLR2004 - no name of an option is longer


def check_address(parts: SplitResult, kind: str, several: str) -> None:
    """Raise ValueError unless a URL names one server and a possible port; `several` says what to do for more."""
    if "," in parts.netloc.rpartition("@")[2]:
        raise ValueError(f"a {kind} URL names one server; {several}")
    try:
        sound = parts.port is None or parts.port in _PORTS
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"the port of a {kind} URL must be a number from 1 to {_PORTS[-1]}")


def check_timeout(name: str, value: object, *, or_zero: bool = False) -> float:
    """Return a timeout in seconds; raises TypeError for what is no number, ValueError for one that no socket can use.

    `or_zero` allows 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not 0 < value <= LONGEST and not (or_zero and value == 0):
        least = "of 0 or more" if or_zero else "above 0"
        raise ValueError(f"{name} must be a number of seconds {least} and at most {LONGEST}, not {value!r}")
    return float(value)


def timeout_of(options: dict[str, str], timeout: float | None, kind: str) -> float:
    """Take the timeout out of the options of a URL, or else the argument; raises ValueError if both are given."""
    if "timeout" in options:
        if timeout is not None:
            raise ValueError("give the timeout once: in the URL, or as an argument")
        timeout = seconds_of(options.pop("timeout"), kind)
    return check_timeout("timeout", TIMEOUT if timeout is None else timeout)


def seconds_of(text: str, kind: str) -> float:
    """Read the timeout of a URL; raises ValueError for what is no number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"the timeout of {kind} URL must be a number of seconds") from None


def check_prefix(prefix: object) -> None:
    """Raise TypeError for a prefix that is not a str, ValueError for one with control characters."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if has_control_characters(prefix):
        raise ValueError(f"prefix must not contain control characters, as {prefix!r} does")


def has_control_characters(text: str) -> bool:
    """Tell whether a text has any, such as a line break: it would garble the log, or end a name early."""
    return _CONTROL.search(text) is not None


def check_replicas(replicas: object) -> None:
    """Raise TypeError if `replicas` is no int, and ValueError if it is below 0."""
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise TypeError(f"replicas must be an int, not {type(replicas).__name__}")
    if replicas < 0:
        raise ValueError(f"replicas must be 0 or more, not {replicas}")
