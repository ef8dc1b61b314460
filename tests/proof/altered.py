"""Wrong code, made from the right code: a function, or a class, with other words in the source of it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

T = TypeVar("T")


def altered(function: Callable[..., object], *changes: str, name: str = "") -> FunctionType:
    """Compile a function of a module once more, with other words in its source: what is replaced, and by what, in turn.

    It keeps the name of its file, by which the simulator knows in which lines threads race; `name` is for the ids of
    tests.
    """
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    for words, instead in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(words) == 1, f"{function.__name__} does not say {words!r} once"
        source = source.replace(words, instead)
    code = compile(f"from __future__ import annotations\n{source}", function.__code__.co_filename, "exec")
    made: dict[str, FunctionType] = {}
    exec(code, function.__globals__, made)  # noqa: S102 - our own source
    mutant = made[function.__code__.co_name]
    mutant.__name__ = name or mutant.__name__
    return mutant


def wrong(right: type[T], defect: str, **changes: tuple[str, ...]) -> type[T]:
    """Make a class that is like the right one, but for `changes` of its methods (see `altered`); `defect` names it."""
    methods = {name: altered(getattr(right, name), *each) for name, each in changes.items()}
    return type(defect, (right,), methods)


def rewritten(owner: object, function: str, *changes: str, name: str = "") -> tuple[object, str, FunctionType]:
    """Give a module or class, what one of its functions is called, and that function altered: a patch of a test."""
    return owner, function, altered(getattr(owner, function), *changes, name=name)
