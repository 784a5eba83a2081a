"""A real browser: the Chromium of the machine, driven by Playwright.

Nothing here skips: without a browser or its driver the tests fail.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfbisect.bisect.result import BisectResult
from perfbisect.dashboard.build import write_site
from tests import loopback
from tests.dashboard.site_world import site
from tests.fixtures.jobs import new_job, plan_for
from tests.fixtures.reports import rich, told

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["new_job", "plan_for", "rich", "told"]

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # Only these tests need it: all others are collected without it.
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"no browser: none of {', '.join(NAMES)} is on the path (Debian: apt install chromium)"
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@dataclass
class Reader:
    """A page of the site with what it asked for and complained of."""

    page: Page
    base: str
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str = "#/") -> Page:
        """The page at an address of the site, once it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}/index.html{address}")
        return self.ready()

    def ready(self) -> Page:
        """The page of the present address, once it is drawn: an address changes before its page begins to."""
        self.until("document.querySelector('#view:not([aria-busy])')?.dataset.address === location.hash")
        self.page.wait_for_selector("#view h1")
        return self.page

    def follow(self, selector: str) -> Page:
        """Opens a link of the site."""
        before = self.page.url
        self.page.locator(selector).first.click()
        self.until(f"location.href !== {json.dumps(before)}")
        return self.ready()

    def until(self, expression: str) -> None:
        """Waits for JavaScript to be true. (The driver's own wait needs eval, which the page forbids.)"""
        for _ in range(500):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"still not so after ten seconds: {expression}")

    def press(self, *keys: str) -> Page:
        for key in keys:
            self.page.keyboard.press(key)
        return self.page


@pytest.fixture(scope="session")
def folders() -> dict[str, Path]:
    """The sites that were built, each once."""
    return {}


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, rich: BisectResult) -> Path:
    """A site with everything that a site can have. Nobody writes to it."""
    if "site" not in folders:
        folders["site"] = tmp_path_factory.mktemp("site")
        write_site(site(rich), folders["site"])
    return folders["site"]


def reading(browser: Browser, base: str, **options: object) -> Iterator[Reader]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)  # type: ignore[arg-type]
    page = context.new_page()
    made = Reader(page, base)
    page.on("request", lambda request: made.asked.append(request.url))
    page.on("console", lambda message: made.complaints.append(message.text))
    page.on("pageerror", lambda error: made.complaints.append(str(error)))
    yield made
    context.close()


@pytest.fixture
def reader(browser: Browser, folder: Path) -> Iterator[Reader]:
    """The site, opened from disk."""
    yield from reading(browser, folder.as_uri())


@pytest.fixture
def hosted(browser: Browser, folder: Path) -> Iterator[Reader]:
    """The site on a web host."""

    class Host(loopback.Handler, http.server.SimpleHTTPRequestHandler):
        """Files of a folder."""

    with loopback.serving(functools.partial(Host, directory=str(folder))) as address:
        yield from reading(browser, f"http://{address}")
