"""Puts a change into the functions that are there, whoever has imported them: their code is replaced."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

from tests.proof.mutation.changes import Change


class Functions:
    def __init__(self, files: Iterable[str]) -> None:
        """Find all that there are now, also those that have been given other names."""
        gc.unfreeze()  # `get_objects` leaves out what is frozen, as conftest.py does with all that it collects
        wanted = set(files)
        self._known: dict[tuple[str, str], list[FunctionType]] = {}
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename in wanted:
                self._known.setdefault((each.__code__.co_filename, each.__code__.co_qualname), []).append(each)
        gc.freeze()

    def apply(self, change: Change, path: str) -> None:
        """Put a change of the file at `path` in, for the rest of this process."""
        new = {each.co_qualname: each for each in _codes(change.code(path))}
        for function in self._known[path, change.function]:
            function.__code__ = new[change.function]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)
