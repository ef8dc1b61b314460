"""Guards for what a lock protects: they refuse the late write of a holder that was paused beyond its lease.

Each takes `Hold.fence`, the number of the tenure, keeps the largest next to what it guards, and raises
`caslock.StaleFence` for a smaller one.  An equal one is accepted: the same tenure may write again.  Fences of one key
at one store can be compared, others cannot, so what one guard protects is written under one key only.

A fence needs 51 bits and more (microseconds since 1970, on most stores): a column or field of 32 bits is too small.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caslock.fencing.files import write_file
    from caslock.fencing.guard import FenceGuard
    from caslock.fencing.redis_values import write_value, write_value_async
    from caslock.fencing.rows import fence_column, write_row, write_row_async

__all__ = [
    "FenceGuard",
    "fence_column",
    "write_file",
    "write_row",
    "write_row_async",
    "write_value",
    "write_value_async",
]

_MODULES = {
    "FenceGuard": "guard",
    "write_file": "files",
    **dict.fromkeys(("write_value", "write_value_async"), "redis_values"),
    **dict.fromkeys(("fence_column", "write_row", "write_row_async"), "rows"),
}


def __getattr__(name: str) -> object:
    """Import a guard, and the package that it needs, only at its use (PEP 562)."""
    if name not in _MODULES:
        message = f"module 'caslock.fencing' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module  # noqa: PLC0415 - see above

    try:
        return getattr(import_module(f"caslock.fencing.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "sqlalchemy":
            raise
        message = f"caslock.fencing.{name} needs the package SQLAlchemy: pip install 'SQLAlchemy>=2.0.43'"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    """Include what `__getattr__` would import."""
    return sorted({*globals(), *__all__})
