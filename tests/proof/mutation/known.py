"""The list of survivors, `survivors.toml`: each with the reason why no test notices the change."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.proof.mutation.changes import Change

LIST: Final = Path(__file__).with_name("survivors.toml")


class Survivors(NamedTuple):
    """The changes that are known to survive."""

    reasons: dict[tuple[str, str, str, str], str]

    @classmethod
    def read(cls) -> Survivors:
        """Read the list."""
        found: dict[tuple[str, str, str, str], str] = {}
        for group in tomllib.loads(LIST.read_text(encoding="utf-8"))["survivor"]:
            place = group["file"], group["function"], group["before"]
            for after in group["after"]:
                found[*place, after] = group["reason"]
        return cls(found)

    def reason(self, change: Change) -> str:
        """Return why a change survives; "" if it is not listed."""
        return self.reasons.get((change.file, change.function, change.before, change.after), "")
