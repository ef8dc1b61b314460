"""A headless Chromium, by chromedriver and the WebDriver protocol: https://www.w3.org/TR/webdriver2/."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from tests.support.recipes import LIMIT, Folder
from tests.support.servers import absent

_OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1100,1000",
)
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"  # the name that the standard gives to an element's id


class Browser:
    def __init__(self, port: int, profile: Path) -> None:
        """Start it, with a profile in an empty folder."""
        self._driver = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        options = {"args": [*_OPTIONS, f"--user-data-dir={profile}"]}
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self._session = ""
        self._session = "/" + self._ask("POST", "", {"capabilities": wanted})["sessionId"]

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def text(self, selector: str) -> str:
        """Return what a person can read in the element, and "" where there is none."""
        read = "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''"
        return str(self._ask("POST", "/execute/sync", {"script": read, "args": [selector]}))

    def type(self, selector: str, text: str) -> None:
        """Replace the text of an input."""
        self._on(selector, "clear", {})
        self._on(selector, "value", {"text": text})

    def click(self, selector: str) -> None:
        """Click at the middle of an element."""
        self._on(selector, "click", {})

    def screenshot(self, file: Path) -> None:
        """Save what is seen as PNG."""
        file.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def quit(self) -> None:
        self._ask("DELETE", "")
        self._driver.close()

    def _on(self, selector: str, verb: str, body: object) -> None:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT]
        self._ask("POST", f"/element/{found}/{verb}", body)

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - the answers differ
        self._driver.request(method, f"/session{self._session}{path}", None if body is None else json.dumps(body))
        response = self._driver.getresponse()
        value = json.loads(response.read())["value"]
        assert response.status == 200, value
        return value


@contextmanager
def chromium(folder: Folder) -> Iterator[Browser]:
    """Run a browser until the end of the block."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        absent("Chromium is not installed: `make servers SERVERS=all` installs it")
    with folder.started("chromedriver", "--port=0") as driver:
        (port,) = driver.waits_for(r"started successfully on port (\d+)")
        browser = Browser(int(port), folder.path / "profile")
        try:
            yield browser
        finally:
            browser.quit()
