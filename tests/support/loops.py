"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **settings: P.kwargs) -> None:
        asyncio.run(test(*args, **settings))

    return run
