"""Turns an error of a driver or of the server into one of caslock's, whose text shows no secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy import exc

from caslock.stores.shared.connections import reason
from caslock.stores.shared.failures import Failures as AnyFailures

if TYPE_CHECKING:
    from caslock.errors import StoreError

_MISSING: Final = ("42P01", "1146")
_EXISTS: Final = ("23505", "42P07", "42710", "1050")  # two connections have made the table at the same moment
# The server has given up the statement, and nothing of it was applied: by a timeout, for a deadlock, or for others.
_NOT_NOW: Final = re.compile("40...|53[23]00|55P03|57014|57P03|1040|1203|1205|1213|1969|3024")
_NO_ANSWER: Final = re.compile("08...|57...|XX000|1053|1158|1159|1160|1161|1317|1927|2...|3169|4031|0|")
_BUSY: Final = re.compile(
    "starting up|shutting down|recovery|out of (shared )?memory|too many|remaining connection slots|not yet accepting"
)
_ADVICE: Final = {
    **dict.fromkeys(("25006", "1290", "1792", "1836"), "Connect to the primary, not to a replica."),
    **dict.fromkeys(
        ("42501", "1044", "1142"),
        "Grant the user select, insert and update on the table caslock, and create if it is to make it.",
    ),
    **dict.fromkeys(("28P01", "28000", "1045", "1698"), "Check the user and the password."),
    **dict.fromkeys(("3D000", "1049"), "Make that database first."),
}
# While it connects, psycopg passes on what the server has said, but not its code.
_ADVICE_BY_WORDS: Final = {
    "password authentication failed|no password supplied": "Check the user and the password.",
    "no pg_hba.conf entry": "Admit the user in the server's pg_hba.conf.",
    'database ".*" does not exist': "Make that database first.",
}
# What libpq puts around the reason: the place again, and guesses.
_AROUND: Final = re.compile(
    r"connection failed: |connection to server (at|on) .*? failed: |"
    r"failed to resolve host '.*?': (\[Errno -?\d+\] )?|"
    r"\s+Is the server running .*\?|\s+This probably means the server terminated .* the request\.",
)
_OTHER: Final = re.compile("invalid response to SSL negotiation|expected authentication|Packet sequence number wrong")
_NO_HOST: Final = 2003


class Failures(AnyFailures):
    """Makes the errors of one store."""

    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        driver = (error.orig if isinstance(error, exc.DBAPIError) else None) or error
        code, text = _code(driver), self.masked(_text(driver))
        if _NOT_NOW.fullmatch(code) or (not sent and _BUSY.search(text)):
            return self.not_now(text)
        if _is_refusal(driver, code, text, sent=sent):
            return self.refused(text, _advice(code, text))
        if sent:
            return self.unanswered(text)
        return self.unreachable(f"another kind of server answers there: {text}" if _OTHER.search(text) else text)


def is_busy(error: BaseException) -> bool:
    """Tell whether the server itself has said that it takes no connection now."""
    return _BUSY.search(str(error)) is not None


def is_missing(error: exc.DBAPIError) -> bool:
    """Tell whether a statement has failed because there is no table."""
    return _code(error.orig) in _MISSING


def is_there(error: exc.DBAPIError) -> bool:
    """Tell whether a table could not be made because somebody else has made it."""
    return _code(error.orig) in _EXISTS


def is_forbidden(error: exc.DBAPIError) -> bool:
    """Tell whether the user may not ask that."""
    return _code(error.orig) == "42501"


def _advice(code: str, text: str) -> str:
    codes = (code, *re.findall(r"\b\w{4,5}\b", text))
    found = (_ADVICE[each] for each in codes if each in _ADVICE)
    return next(found, "") or next((say for words, say in _ADVICE_BY_WORDS.items() if re.search(words, text)), "")


def _is_refusal(driver: BaseException, code: str, text: str, *, sent: bool) -> bool:
    """Tell whether the server, or the driver, has said no for good."""
    if isinstance(driver, TypeError | ValueError):  # an option that the driver does not know
        return not sent
    if not (_is_of_postgresql(driver) or _number(driver)):
        return False
    if _NO_ANSWER.fullmatch(code):
        said = any(words in text for words in ("FATAL", "connection option", "no password supplied"))
        return not sent and _is_of_postgresql(driver) and said
    return True


def _code(driver: BaseException | None) -> str:
    """Return the SQLSTATE of PostgreSQL, or MySQL's number of the error; "" if the server has not said any."""
    code = getattr(driver, "sqlstate", None) if _is_of_postgresql(driver) else _number(driver)
    return str(code or "")


def _is_of_postgresql(driver: BaseException | None) -> bool:
    return type(driver).__module__.startswith("psycopg")


def _number(driver: BaseException | None) -> int | None:
    first = driver.args[0] if driver is not None and driver.args else None
    is_of_mysql = type(driver).__module__.startswith(("pymysql", "asyncmy"))
    return first if is_of_mysql and isinstance(first, int) else None


def _text(driver: BaseException) -> str:
    """Return what the driver says, in one line."""
    if isinstance(driver, exc.TimeoutError):
        return "all connections of this process are in use"
    if isinstance(driver, TimeoutError | OSError):
        return reason(driver)
    below = getattr(driver, "original_exception", None) or driver.__cause__
    if _number(driver) == _NO_HOST and isinstance(below, OSError):
        return reason(below)
    said = str(driver.args[1]) if _number(driver) is not None and len(driver.args) > 1 else str(driver)
    return _AROUND.sub("", " ".join((said or type(driver).__name__).split()))
