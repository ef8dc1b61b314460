"""The list of survivors, `survivors.toml`: each with the reason why no test notices the change."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("survivors.toml")


def known_survivors() -> dict[tuple[str, str, str, str], str]:
    """Return the reason for each change that is known to survive, by its `name`."""
    groups = tomllib.loads(LIST.read_text(encoding="utf-8"))["survivor"]
    return {
        (group["file"], group["function"], group["before"], after): group["reason"]
        for group in groups
        for after in group["after"]
    }
