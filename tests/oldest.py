"""Prints, as constraints for pip, the oldest version of each package that pyproject.toml allows a user to have."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

NOT_FOR_USERS: Final = ("bench", "dev")
"""The extras that only developers of caslock install."""


def oldest() -> list[str]:
    """Return them."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in extras if name not in NOT_FOR_USERS)]
    needs = (re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", each) for every in lists for each in every)
    return sorted({f"{need[1]}=={need[2]}" for need in needs if need})


if __name__ == "__main__":
    print(*oldest(), sep="\n")  # noqa: T201 - its output is what it is for
