"""The functions of the protocol under one name, so that a planted bug replaces one wherever it is used."""

# ruff: noqa: F401 - tests take them from here
# mypy: implicit-reexport

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Final

from caslock.protocol.acquire import LATE_WAKE, YIELD_WAIT, _put_when_absent, _resume, _try, _wait, acquire, believe
from caslock.protocol.batch import put_together, remove_together
from caslock.protocol.clean_up import FIRST_PAUSE, run_clean_ups
from caslock.protocol.exchange import settle, write_surely
from caslock.protocol.hand_over import _first_put, hand_over
from caslock.protocol.limits import LONGEST_WAIT, PASSES, last_start
from caslock.protocol.release import _leave, force_release, release
from caslock.protocol.renew import (
    _not_renewed,
    _renew_together,
    _renewal,
    _renewals,
    _renewed,
    check,
    renew,
    renew_alone,
    renew_due,
    who_holds,
)
from caslock.protocol.withdraw import _withdraw_all, give_up, step_back, withdraw

_MODULES: Final = [
    import_module(f"caslock.protocol.{name}")
    for name in ("acquire", "batch", "clean_up", "hand_over", "limits", "release", "renew", "withdraw")
]


class _Everywhere(ModuleType):
    """All functions and constants that the modules of the protocol define or import."""

    def __getattribute__(self, name: str) -> object:
        for module in _MODULES if not name.startswith("__") else ():
            if hasattr(module, name):
                return getattr(module, name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        for module in _MODULES:
            if hasattr(module, name):
                setattr(module, name, value)


sys.modules[__name__].__class__ = _Everywhere
