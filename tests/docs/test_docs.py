"""The documents agree with the tests, the tree and the command line; the reference has every public name, once."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

import caslock.stores
from caslock.cli import run
from tests.proof.mutants.table import MUTANTS
from tests.support.recipes import ROOT, Folder

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


REFERENCE = ROOT / "docs" / "reference"
NAMES = Counter(
    name
    for page in REFERENCE.glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
)
PUBLIC = ["caslock", "caslock.fencing", "caslock.testing", "caslock.verify"] + [
    f"caslock.stores.{module.name}"
    for module in pkgutil.iter_modules(caslock.stores.__path__)
    if module.name not in {"memory", "shared"}  # a file without `__all__`, and what the stores have in common
]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """Each name of `__all__` has its place there, under the module that a user imports it from."""
    public = importlib.import_module(module).__all__
    assert {name: NAMES[f"{module}.{name}"] for name in public} == dict.fromkeys(public, 1)


def test_the_reference_has_no_name_that_is_gone() -> None:
    """Each name can be imported."""
    for name in NAMES:
        module, _, rest = name.rpartition(".")
        attrgetter(rest)(importlib.import_module(module))


def test_the_first_page_links_the_others() -> None:
    """A page of the reference that nobody finds helps nobody."""
    links = re.findall(r"\]\((\w+\.md)\)", (REFERENCE / "index.md").read_text(encoding="utf-8"))
    assert sorted(links) == sorted(page.name for page in REFERENCE.glob("*.md") if page.name != "index.md")


COMMANDS = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"^```sh\n(.*?)^```$", COMMANDS, re.MULTILINE | re.DOTALL))
def test_the_commands_of_the_command_line_run(block: str, tmp_path: Path) -> None:
    """Who pastes a block sees it work."""
    Folder(tmp_path).run("bash", "-e", "-c", f"exec 2>errors\n{block}")
    assert (tmp_path / "errors").read_text() == ""


def test_the_table_of_the_command_line_has_each_exit_status() -> None:
    """Page, help and code give a status the same meaning."""
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", COMMANDS, re.MULTILINE))
    assert set(rows) == {"2", str(run.LOST), str(run.BUSY), str(run.REFUSED)}
    help_text = run.command.help or ""
    assert re.findall(r"^\s*(\d+) ", help_text, re.MULTILINE) == ["2", "123", "124", "125", "126", "127"]
    assert "--busy-exit-code" in rows[str(run.BUSY)]
    assert f"{run.NOT_EXECUTABLE}, {run.NOT_FOUND}" in COMMANDS


def test_the_page_of_the_command_line_names_each_signal() -> None:
    """Every signal that is passed on is on the page."""
    assert [name for name in (*run._ENDS, *run._OTHERS) if name not in COMMANDS] == []
