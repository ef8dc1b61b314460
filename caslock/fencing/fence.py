"""The check of a fence before anything is sent."""

from __future__ import annotations


def checked(fence: object) -> int:
    """Return `fence`; raises TypeError unless it is an int, and ValueError unless it is positive."""
    if not isinstance(fence, int) or isinstance(fence, bool):
        raise TypeError(f"fence must be an int, as hold.fence is, not {type(fence).__name__}")
    if fence <= 0:
        raise ValueError(f"fence must be positive, as hold.fence is, not {fence}")
    return fence
