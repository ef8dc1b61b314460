"""The documents agree with the tests and with the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS
from tests.test_mutants import CAUGHT

ROOT = Path(__file__).parent.parent
PROOF = ROOT / "docs" / "proof.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_table_of_planted_bugs_is_that_of_the_tests() -> None:
    """`docs/proof.md` has a row for each planted bug, with the layers that catch it, and their number."""
    section = PROOF.read_text(encoding="utf-8").partition("## Planted bugs\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert rows[0] == ("bug", "caught by")
    assert dict(rows[1:]) == CAUGHT
    assert len(rows) == 1 + len(CAUGHT)
    assert {mutant.name for mutant in MUTANTS} == set(CAUGHT)
    assert f"{len(CAUGHT)} of {len(MUTANTS)} are caught:" in section


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link inside the project leads to a file that exists, or to a heading of the same page."""
    text = page.read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in text.splitlines()}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("https://"):
            assert (page.parent / target).exists(), target
