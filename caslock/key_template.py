"""The key of `caslock.locked`: a text with arguments of the function by name, such as ``invoice:{invoice.id}``."""

from __future__ import annotations

import inspect
import re
import string
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from caslock.keys import PLAIN, bounded, part_text, quoted
from caslock.store import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Field(NamedTuple):
    """An argument in a key."""

    before: str
    """The text before it."""
    name: str
    """The name of the argument, and which of its attributes or items: ``invoice.id``."""
    spec: str
    conversion: str | None


class KeyTemplate:
    """Makes keys from the arguments of calls."""

    def __init__(self, key: str, function: Callable[..., object]) -> None:
        """Check that the function has the arguments that the key names, and that different ones make different keys."""
        if not isinstance(key, str):
            message = f"key must be a str, not {type(key).__name__}"
            raise TypeError(message)
        self._key = key
        self._signature = inspect.signature(function)
        self._fields, self._end = _parsed(key)
        signs = {sign for field in self._fields for sign in field.before if not sign.isalnum()} | set(self._end)
        self._plain = "".join(sign for sign in PLAIN if sign not in signs)
        for field in self._fields:
            self._check(field, function)
        for field in self._fields[1:]:
            if all(sign.isalnum() or sign in "%'" for sign in field.before):
                message = (
                    f"key {key!r}: put a sign such as ':' before {{{field.name}}}, or different values make one key"
                )
                raise ValueError(message)
        check_key(key)

    def __call__(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Return the key of a call; raises TypeError if the function does not take these arguments."""
        if not self._fields:
            return self._end
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        parts = [field.before + self._text(field, bound.arguments) for field in self._fields]
        return bounded("".join([*parts, self._end]))

    def _check(self, field: _Field, function: Callable[..., object]) -> None:
        root = re.match(r"[^.\[]*", field.name)
        known = self._signature.parameters
        if root is None or root[0] not in known:
            names = ", ".join(known) or "none"
            message = f"key {self._key!r} names {field.name!r}, but the arguments of {named(function)} are: {names}"
            raise ValueError(message)
        if field.conversion not in (None, "s", "r", "a"):
            message = f"key {self._key!r}: '!{field.conversion}' is none of !s, !r, !a"
            raise ValueError(message)
        if "{" in field.spec:
            message = f"key {self._key!r}: the format of {field.name!r} must not contain a field"
            raise ValueError(message)

    def _text(self, field: _Field, arguments: Mapping[str, object]) -> str:
        value, _ = _FORMATTER.get_field(field.name, (), arguments)
        name = f"{{{field.name}}}"
        if not (field.spec or field.conversion):
            return part_text(value, name, self._plain)
        converted = _FORMATTER.convert_field(value, cast("Any", field.conversion))
        text: str = _FORMATTER.format_field(converted, field.spec)
        if not isinstance(value, str) and _ADDRESS.search(text):
            message = f"{name} of a key is {text}, which names an address and no {type(value).__name__}"
            raise TypeError(message)
        return quoted(text, name, self._plain)


_FORMATTER: Final = string.Formatter()
_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+")


def _parsed(key: str) -> tuple[list[_Field], str]:
    """Return the fields of a key, and the text after the last one."""
    fields: list[_Field] = []
    text = ""
    try:
        for before, name, spec, conversion in _FORMATTER.parse(key):
            text += before
            if isinstance(name, str):
                fields.append(_Field(text, name, spec or "", conversion))
                text = ""
    except ValueError as error:
        message = f"key {key!r}: {error}"
        raise ValueError(message) from None
    return fields, text


def named(function: object) -> str:
    """Name a function, for errors."""
    return str(getattr(function, "__qualname__", function))
