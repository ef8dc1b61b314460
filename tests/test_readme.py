"""What the README says is short, and true: its Python blocks run.

Each block is a program of its own.  Two comments on the line before a block's fence change that:
``<!-- continues -->`` runs it after the block before, in one program; ``<!-- not run: why -->`` does not run it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from tests.servers import Server

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

SERVERS = {"redis://localhost:6379/0": "redis_server", "memcached://localhost:11211": "memcached_server"}
"""The URLs in the README, and the fixture whose server stands in for each."""

FENCE = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A program from the README."""

    line: int
    code: str  # with as many empty lines before it that a traceback tells the README's line


def blocks(text: str) -> list[Block]:
    """Read the programs in a Markdown text."""
    found: list[Block] = []
    for match in FENCE.finditer(text):
        above = text.count("\n", 0, match.start("code"))
        if match["mark"] == "continues":
            line, code = found.pop()
        else:
            line, code = above + 1, ""
        if not (match["mark"] or "").startswith("not run: "):
            found.append(Block(line, code + "\n" * (above - code.count("\n")) + match["code"]))
    return found


def read() -> str:
    """Give the README's text; nothing if there is none, so that only the tests of it fail."""
    return README.read_text(encoding="utf-8") if README.exists() else ""


@pytest.mark.parametrize("block", blocks(read()), ids=lambda block: f"line-{block.line}")
def test_block_runs(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A reader who pastes a block sees it work."""
    code = block.code
    for url, fixture in SERVERS.items():
        if url in code:
            server: Server = request.getfixturevalue(fixture)
            code = code.replace(url, server.url)
    program = tmp_path / "README.py"
    program.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_readme_is_short() -> None:
    """The README takes no more than 150 lines, and the first lock stands by line 8."""
    lines = read().splitlines()
    assert 0 < len(lines) <= 150
    assert any("Lock(" in line for line in lines[:8])


def test_blocks_are_read_as_marked() -> None:
    """A block keeps its line; one that continues joins the one before it; one that is not to be run is left out."""
    first, second, third = (f"```python\n{code}\n```\n" for code in ("a = 1", "b = a", "c"))
    text = f"# x\n{first}<!-- continues -->\n{second}<!-- not run: why -->\n{third}"
    assert blocks(text) == [Block(3, "\n\na = 1\n\n\n\nb = a\n")]
    assert blocks("```sh\nmake\n```\n") == []
