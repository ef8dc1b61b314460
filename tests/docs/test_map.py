"""The map of the code, `docs/architecture.md`, names every file of the packages that it describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "architecture.md"


@pytest.mark.parametrize("package", ["protocol", "local"])
def test_the_map_names_each_file(package: str) -> None:
    """The table of a package has its files, each once, and no others."""
    text = MAP.read_text(encoding="utf-8")
    table = text.partition(f"| `{package}/` | contains |\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+\.py)`", row.split("|")[1])]
    files = [path.name for path in (ROOT / "caslock" / package).glob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(files)


def test_the_map_names_no_file_that_is_gone() -> None:
    """Every path in the map exists."""
    text = MAP.read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:tests|protocol|local|stores)/[\w./]*)`", text))
    paths |= set(re.findall(r"\(((?:protocol|local)/\w+\.py)\)", text))
    assert len(paths) > 8
    gone = [path for path in sorted(paths) if not ((ROOT / path).exists() or (ROOT / "caslock" / path).exists())]
    assert gone == []
