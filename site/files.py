"""What goes into the site, and what it has to say of each public name: hooks of MkDocs.

Every file of the site keeps its place in the repository, so the links between the pages work there and here.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from griffe import Alias, AliasResolutionError, load
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from griffe import Object
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "tests/README.md")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
NAME = re.compile(r"^::: caslock\.(\S+)$", re.MULTILINE)

log = logging.getLogger("mkdocs.hooks.site")  # with --strict, a warning fails the build


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Take the pages, and the files of the repository that they link to, beside the files of the theme."""
    for file in list(files):
        if Path(config.docs_dir) in Path(file.abs_src_path or "").parents:
            files.remove(file)
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    linked = {(page.parent / target).resolve() for page in pages for target in LINK.findall(page.read_text("utf-8"))}
    for path in sorted(pages | {path for path in linked if path.is_file() and path.is_relative_to(ROOT)}):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    files.append(File.generated(config, "style.css", abs_src_path=str(ROOT / "site" / "style.css")))
    return files


def on_pre_build(*, config: MkDocsConfig) -> None:  # noqa: ARG001 - MkDocs names the arguments
    """Warn of each public name in the reference that has no docstring.

    A member of a store with the name of one that `caslock.store` explains needs none of its own.
    """
    package = load("caslock", search_paths=[str(ROOT)])
    explained = {
        name
        for protocol in package["store"].classes.values()
        if "Protocol" in map(str, protocol.bases)
        for name, member in protocol.members.items()
        if member.has_docstring
    }
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name in NAME.findall(page.read_text(encoding="utf-8")):
            for item in public(package[name]):
                if not item.has_docstring and (item.name not in explained or item.is_class):
                    log.warning("%s has no docstring: %s:%s", item.path, item.filepath, item.lineno)


def public(item: Object | Alias) -> Iterator[Object | Alias]:
    """Yield a name, and the public names that it has or inherits."""
    yield item
    if item.is_class:
        for name, member in item.all_members.items():
            if not name.startswith("_"):
                try:
                    yield member.final_target if isinstance(member, Alias) else member
                except AliasResolutionError:  # of another package
                    continue
