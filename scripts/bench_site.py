"""What a site of 300 series of 365 points costs: to build, to carry, to open in a headless browser.

    python -m scripts.bench_site [--cells N] [--nights N] [--repeat N]

Three series a cell. Times in the browser are by the clock, medians, each in a fresh profile; the first page
has to stay under 0.5 MB beside the plotting script (exit code 1 where it does not). Needs playwright and a
Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

from perfbisect.dashboard.build import WrittenSite, write_site
from perfbisect.dashboard.collect import Site
from tests.dashboard.site_world import large

LIMIT = 500_000

DRAWN = """new Promise((resolve) => { const look = () => requestAnimationFrame(() => {
  if (document.querySelector("#view:not([aria-busy]) h1")) resolve(performance.now());
  else look(); }); look(); })"""
"""Milliseconds from the start of the navigation to the frame that shows the page."""

OPENED = """([selector, hash]) => new Promise((resolve) => {
  const began = performance.now();
  const look = () => requestAnimationFrame(() => {
    if (document.querySelector(selector)) resolve(performance.now() - began);
    else look(); });
  location.hash = hash; look(); })"""
"""Milliseconds from following a link to what it shows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Builds, opens, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args(argv)
    document = large(options.cells, options.nights)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        made = write_site(document, Path(folder))
        spent = time.process_time() - began
        overview, every, first, second = opening(made, document, options.repeat)
    count = sum(len(one.series) for one in document.cells)
    rows = (
        ("site", f"{count} series of {options.nights} points, {made.files} files, {made.all / 1e6:.1f} MB"),
        ("build", f"{spent:.2f} s of CPU"),
        ("first page", f"{made.first_page / 1e3:.0f} kB of {LIMIT / 1e3:.0f} kB allowed"),
        ("plotting script", f"{made.plots / 1e3:.0f} kB, read with the first figure"),
        ("overview drawn", f"{overview:.0f} ms from the start of the navigation"),
        ("all series drawn", f"{every:.0f} ms, {count} rows"),
        ("first cell drawn", f"{first:.0f} ms, the plotting script included"),
        ("another cell", f"{second:.0f} ms"),
    )
    print("\n".join(f"{name:<18}{text}" for name, text in rows))
    return int(made.first_page > LIMIT)


def opening(made: WrittenSite, document: Site, repeat: int) -> tuple[float, ...]:
    """Milliseconds until there stand: the overview, all series, a first cell's figure, another cell's."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise SystemExit("no browser: chromium, chromium-browser or google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        taken = [_once(browser, made, document) for _ in range(repeat)]
        browser.close()
    return tuple(median(column) for column in zip(*taken, strict=True))


def _once(browser: Browser, made: WrittenSite, document: Site) -> list[float]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(made.index.as_uri())
    taken = [page.evaluate(DRAWN)]
    last = len(document.cells) + 1
    taken.append(page.evaluate(OPENED, [f"table.cells tbody tr:nth-child({last})", "#/?metric=*"]))
    for cell in document.cells[:2]:
        title = f"#view:has(h1) .figure[aria-label*='{cell.name}'] canvas"
        taken.append(page.evaluate(OPENED, [title, f"#/cell/{quote(cell.name, safe='')}"]))
    context.close()
    return taken


if __name__ == "__main__":
    raise SystemExit(main())
