"""The README is short, its Python blocks run, as do those of the pages in `docs`, and what the pages say is so.

Each block is a program of its own.  Two comments on the line before a block's fence change that:
``<!-- continues -->`` runs it after the block before, in one program; ``<!-- not run: why -->`` does not run it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

import caslock
from tests.conftest import NewServer
from tests.support.locations import fresh, until
from tests.support.recipes import ROOT, Folder
from tests.support.servers import HOST, REDIS, Server, absent, free_port

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")

SERVERS = {
    "redis://localhost:6379/0": "redis_server",
    "redis://localhost:6380/0": "spare_redis",
    "redis://localhost:6381/0": "third_redis",
    "redis+cluster://localhost:7000,other:7001": "redis_cluster",
}
"""The URLs in the README and the pages, and the fixture whose server takes the place of each."""

FENCE = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^ *```python\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int
    code: str  # with as many empty lines before it that a traceback tells the README's line


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    for match in FENCE.finditer(text):
        above = text.count("\n", 0, match.start("code"))
        if match["mark"] == "continues":
            line, code = found.pop()
        else:
            line, code = above + 1, ""
        if not (match["mark"] or "").startswith("not run: "):
            found.append(Block(line, code + "\n" * (above - code.count("\n")) + textwrap.dedent(match["code"])))
    return found


@pytest.fixture
def third_redis(new_redis: NewServer) -> Server:
    """Return one more Redis."""
    return new_redis()


@pytest.fixture
def redis_cluster(new_redis: NewServer) -> Server:
    """Return a Redis Cluster of one node, which has all slots."""
    if os.environ.get(REDIS.variable) or not REDIS.binary():
        absent("no redis-server on the PATH to run as a Redis Cluster: `make servers` installs one")
    server = new_redis("--cluster-enabled", "yes", "--cluster-announce-ip", HOST, "--cluster-port", str(free_port()))
    with redis.Redis(host=server.host, port=server.port) as admin:
        admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        assert until(lambda: "cluster_state:ok" in str(admin.execute_command("CLUSTER", "INFO")))
    return dataclasses.replace(server, url=f"redis+cluster://{server.host}:{server.port}")


PAGES = {
    page.name: blocks(page.read_text(encoding="utf-8"))
    for page in sorted(ROOT.glob("docs/*.md"))
    if page.name != "recipes.md"  # its blocks are files, which `tests/docs/test_recipes.py` runs
}


@pytest.mark.parametrize(
    "block",
    [
        *(pytest.param(block, id=f"line-{block.line}") for block in blocks(TEXT)),
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
    folder = Folder(tmp_path)
    folder.run(sys.executable, "-W", "error", str(folder.write("README.py", code)))


def test_no_block_is_overlooked() -> None:
    """However it is written: each Python block of a page is read, and there are some."""
    texts = [TEXT, *((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)]
    assert sum(len(FENCE.findall(text)) for text in texts) == sum(text.count("```py") for text in texts) > 40
    assert sum(map(len, PAGES.values())) > 30


def test_readme_is_short() -> None:
    """The README takes no more than 130 lines, and the first lock is in the first 8."""
    lines = TEXT.splitlines()
    assert 0 < len(lines) <= 130
    assert any("Lock(" in line for line in lines[:8])


def test_what_is_not_promised_comes_first() -> None:
    """What a lock does not promise comes before what it does."""
    assert 0 < TEXT.index("## What it does not promise") < TEXT.index("## What it promises")


def rows_of(page: str) -> dict[str, str]:
    """Return the first two columns of the tables of a page."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", (ROOT / "docs" / page).read_text(), re.MULTILINE))


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


@pytest.mark.long
def test_start_shows_one_process_waiting_for_the_other(tmp_path: Path) -> None:
    """Who saves the first program, and pastes the command below it, sees that the processes take turns."""
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    folder = Folder(tmp_path)
    folder.write("start.py", blocks(text)[0].code)
    command = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    told = folder.run("bash", "-e", "-c", command).split()
    first, second = dict.fromkeys(told[::2])
    assert told == [first, "begins", first, "ends", second, "begins", second, "ends"]


def test_each_error_has_its_own_answer(tmp_path: Path) -> None:
    """The program shows each of its outcomes once, in the order in which it provokes them."""
    told = Folder(tmp_path).run(sys.executable, "-c", PAGES["failures.md"][0].code)
    busy = "somebody else is booking the room: try later"
    assert told.splitlines() == ["booked", busy, "not booked, retry after a pause", "check what was written"]


def test_the_record_in_redis_is_what_the_page_explains(redis_server: Server) -> None:
    """GET shows the version, a colon, and the fields that the table names; after a release, nothing."""
    text = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    table = text.partition("| part | says |")[2].partition("\n\n")[0]
    shown = re.search(r"^\d+:({.*?})\n", text, re.MULTILINE | re.DOTALL)
    assert shown
    named = set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))) - {"PTTL"}
    key = fresh("pages")
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    with contextlib.closing(client), caslock.connect(redis_server.url) as store:
        with caslock.Lock(store, key, note="nightly backup") as hold:
            version, _, record = str(client.get(key)).partition(":")
            assert int(version) == hold.fence
            assert set(json.loads(record)) == named == set(json.loads(shown[1].replace("\n", "")))
            assert json.loads(record)["fence"] is None
            hold.extend()
            assert json.loads(str(client.get(key)).partition(":")[2])["fence"] == hold.fence
        assert client.get(key) is None
        with caslock.Lock(store, key, min_hold=60):
            pass
        assert json.loads(str(client.get(key)).partition(":")[2])["holds"] == ["kept"]
