"""The README is short, and its Python blocks run, as do those of the pages in `docs`.

Each block is a program of its own.  Two comments on the line before a block's fence change that:
``<!-- continues -->`` runs it after the block before, in one program; ``<!-- not run: why -->`` does not run it.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import redis

import caslock
from tests.support.servers import HOST, REDIS, absent, free_port

if TYPE_CHECKING:
    from tests.conftest import NewServer
    from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

SERVERS = {
    "redis://localhost:6379/0": "redis_server",
    "redis://localhost:6380/0": "spare_redis",
    "redis://localhost:6381/0": "third_redis",
    "redis+cluster://localhost:7000,other:7001": "redis_cluster",
}
"""The URLs in the README and the pages, and the fixture whose server takes the place of each."""

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
    """Return the README's text; nothing if there is none, so that only the tests of it fail."""
    return README.read_text(encoding="utf-8") if README.exists() else ""


@pytest.fixture
def third_redis(new_redis: NewServer) -> Server:
    """Return one more Redis."""
    return new_redis()


@pytest.fixture
def redis_cluster(new_redis: NewServer) -> Server:
    """Return a Redis Cluster of one node, which has all slots."""
    if os.environ.get(REDIS.variable) or not any(map(shutil.which, REDIS.binaries)):
        absent("no redis-server on the PATH to run as a Redis Cluster: `make servers` installs one")
    server = new_redis("--cluster-enabled", "yes", "--cluster-announce-ip", HOST, "--cluster-port", str(free_port()))
    with redis.Redis(host=server.host, port=server.port) as admin:
        admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + 50
        while "cluster_state:ok" not in str(admin.execute_command("CLUSTER", "INFO")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return dataclasses.replace(server, url=f"redis+cluster://{server.host}:{server.port}")


PAGES = {
    page.name: blocks(page.read_text(encoding="utf-8"))
    for page in sorted(README.parent.glob("docs/*.md"))
    if page.name != "recipes.md"  # its blocks are files, which `tests/docs/test_recipes.py` runs
}


@pytest.mark.parametrize(
    "block",
    [
        *(pytest.param(block, id=f"line-{block.line}") for block in blocks(read())),
        *(pytest.param(block, id=f"{page}-line-{block.line}") for page, found in PAGES.items() for block in found),
    ],
)
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


def test_pages_have_blocks() -> None:
    """These pages have programs, which are run."""
    numbers = {name: len(found) for name, found in PAGES.items() if found}
    assert numbers == {
        "failures.md": 1,
        "fencing.md": 5,
        "functions.md": 4,
        "leaders.md": 2,
        "observing.md": 3,
        "quorum.md": 2,
        "read-write.md": 3,
        "semaphore.md": 3,
        "settings.md": 2,
        "several.md": 2,
        "start.md": 5,
        "stores.md": 2,
        "testing.md": 4,
    }


def test_readme_is_short() -> None:
    """The README takes no more than 130 lines, and the first lock is in the first 8."""
    lines = read().splitlines()
    assert 0 < len(lines) <= 130
    assert any("Lock(" in line for line in lines[:8])


def test_what_is_not_promised_comes_first() -> None:
    """What a lock does not promise comes before what it does."""
    text = read()
    assert 0 < text.index("## What it does not promise") < text.index("## What it promises")


def rows_of(page: str) -> dict[str, str]:
    """Return the first two columns of the tables of a page."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", (README.parent / "docs" / page).read_text(), re.MULTILINE))


def test_every_setting_and_error_is_explained() -> None:
    """The tables have a row for each keyword argument of a Lock, with its default, and for each error."""
    rows = rows_of("settings.md")
    settings = [item for item in inspect.signature(caslock.Lock).parameters.values() if item.kind is item.KEYWORD_ONLY]
    assert settings
    for setting in settings:
        default = setting.default
        if setting.name == "owner":
            assert rows["owner"] == "private"
        elif setting.name == "poll":
            assert rows["poll"] == "5 ms to 0.5 s"
        elif isinstance(default, tuple):
            assert rows[setting.name] == f"`{tuple(default)}`"
        elif isinstance(default, float):
            assert float(rows[setting.name]) == default
        else:
            assert rows[setting.name] in {f"`{default}`", f'`"{default}"`'}
    errors = {name for name in caslock.__all__ if re.search(r"Error|Lost|Held|Acquired|Unavailable|Unknown", name)}
    assert errors - {"CaslockError"} <= set(rows_of("failures.md"))
