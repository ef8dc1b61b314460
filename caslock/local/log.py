"""The logger ``caslock``, for what no exception can report."""

from __future__ import annotations

import sys


def warn(text: str) -> None:
    """Log a WARNING."""
    import logging  # noqa: PLC0415 - it takes longer to import than all of caslock, and is seldom needed

    logging.getLogger("caslock").warning("%s", text)


def log_error(text: str) -> None:
    """Log an ERROR, with the traceback of the exception that is handled, if any."""
    import logging  # noqa: PLC0415 - as above

    logging.getLogger("caslock").error("%s", text, exc_info=sys.exc_info()[0] is not None)
