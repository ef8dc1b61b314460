"""Prints, as constraints for pip, the oldest version of each package that pyproject.toml allows a user to have."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

NOT_FOR_USERS: Final = ("bench", "dev")
"""The extras that only developers of caslock install."""


def oldest() -> list[str]:
    """Return them; raises ValueError for a requirement that names no oldest version."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in extras if name not in NOT_FOR_USERS)]
    return sorted({_oldest(each) for every in lists for each in every if not each.startswith("caslock[")})


def _oldest(requirement: str) -> str:
    need = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)(?:,<[\d.]+)?", requirement)
    if need is None:
        raise ValueError(f"{requirement!r} is not of the form name>=version")
    return f"{need[1]}=={need[2]}"


if __name__ == "__main__":
    print(*oldest(), sep="\n")  # noqa: T201 - its output is what it is for
