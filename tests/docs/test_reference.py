"""The reference in `docs/reference` has every public name, once."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

import caslock.stores

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
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
