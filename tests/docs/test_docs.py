"""The documents agree with the tests and with the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.proof.mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "docs" / "proof.md"
MAP = ROOT / "docs" / "architecture.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_table_of_planted_bugs_is_that_of_the_tests() -> None:
    """`docs/proof.md` has a row for each planted bug, with the layers that catch it, and their number."""
    section = PROOF.read_text(encoding="utf-8").partition("## Planted bugs\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert rows[0] == ("bug", "caught by")
    assert dict(rows[1:]) == {mutant.name: ", ".join(check.layer for check in mutant.checks) for mutant in MUTANTS}
    assert len(rows) == 1 + len(MUTANTS)
    assert f"{len(MUTANTS)} of {len(MUTANTS)} are caught:" in section


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link inside the project leads to a file that exists, and to a heading of it if it names one."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            name, _, heading = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), target
            assert not heading or heading in headings(file), target


def headings(page: Path) -> set[str]:
    """Return what links call the headings of a page."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def test_the_index_names_every_page() -> None:
    """No page is left out of the index, and the README leads to it."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name}" not in index} == set()
    assert "(docs/index.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["protocol", "local"])
def test_the_map_names_each_file(package: str) -> None:
    """The table of a package in the map of the code has its files, each once, and no others."""
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
