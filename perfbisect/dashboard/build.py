"""Writes the static site, which opens from disk and from any web host and requests nothing else.

Pages read their data from script files, since a browser fetches nothing from disk; the data of a cell or an
event is read when it is opened, and small curves of a metric when they are shown. Data files are named by
their content, so a stale cached file never stands beside a new page. The page's policy lets only the site's
own files run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.bisect.report import build_report
from perfbisect.dashboard.collect import Site
from perfbisect.dashboard.pages import (
    cell_payload,
    event_payload,
    events,
    metric_payloads,
    overview,
    packed,
    page_of,
    text,
)
from perfbisect.errors import MachineError, UsageError
from perfbisect.report.html import embedded_json, plot_script, plot_style, report_html
from perfbisect.resources import shipped_folder

PLOT_SCRIPT = "plots.js"
"""The script that draws figures, which all pages share."""

# It tells a page of perfbisect from a page of the user, which is never overwritten.
_MARK = '<meta name="generator" content="perfbisect">'
_DATA_FILE = re.compile(r"(cell|event|metric)-[0-9a-f]{16}\.js")
_SCRIPTS = (
    *("state", "dom", "words", "draw", "series", "figure", "points", "panels", "overview", "cell", "alert"),
    *("compare", "bisections", "keys", "main"),
)
"""In the order in which they are put together."""


@dataclass(frozen=True)
class WrittenSite:
    """Sizes in bytes; ``first_page``: read before anything is opened, ``plots``: with the first figure."""

    index: Path
    files: int
    first_page: int
    plots: int
    all: int


def write_site(site: Site, out: Path) -> WrittenSite:
    """Write the site over an older one, which stays whole if the disk fails; other files are kept."""
    index = out / "index.html"
    try:
        if out.exists() and not out.is_dir():
            raise UsageError(f"the site needs a folder, and {out} is a file", next_step="another -o DIR")
        if index.exists() and _MARK not in index.read_text(encoding="utf-8", errors="replace"):
            raise UsageError(f"{index} is not a page of perfbisect and is kept", next_step="another -o DIR")
        return _Writer(out).write(site)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(
            f"the site cannot be written to {out}: {error}", next_step="another -o DIR"
        ) from error
    except OSError as error:
        raise MachineError(f"the site cannot be written: {error}", where=out) from error


class _Writer:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._sizes: dict[str, int] = {}

    def write(self, site: Site) -> WrittenSite:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        # The index comes last, and files it does not name are removed after it: a page that is open works on.
        plots = self._text(PLOT_SCRIPT, plot_script())
        first = self._assets()
        cells = {cell.name: self._data("cell", cell_payload(cell)) for cell in site.cells}
        by_metric = {
            metric: self._data("metric", packed(rows)) for metric, rows in metric_payloads(site).items()
        }
        by_event = {event.id: self._data("event", event_payload(event, site)) for event in events(site)}
        for bisection in site.bisections:
            report = build_report(bisection.report)
            html = report_html(report, plots=f"../{PLOT_SCRIPT}", home="../index.html#/bisections")
            self._text(page_of(bisection.report), html)
        data = embedded_json(packed(overview(site, cells, by_event, by_metric)))
        first += self._text("data/site.js", _data_script("site", data))
        loader = FileSystemLoader(shipped_folder("dashboards"))
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        index = environment.get_template("index.html.jinja").render(title=text(site.title))
        first += self._text("index.html", index)
        kept = {*cells.values(), *by_event.values(), *by_metric.values()}
        for path in (self._out / "data").iterdir():
            if _DATA_FILE.fullmatch(path.name) and path.name not in kept:
                path.unlink()
        total = sum(self._sizes.values())
        return WrittenSite(self._out / "index.html", len(self._sizes), first, plots, total)

    def _data(self, what: str, payload: Mapping[str, Any]) -> str:
        """Write a data file; return its name in ``data/``."""
        data = embedded_json(payload)
        name = f"{what}-{hashlib.sha256(data.encode()).hexdigest()[:16]}.js"
        self._text(f"data/{name}", _data_script(name, data))
        return name

    def _assets(self) -> int:
        folder = shipped_folder("dashboards")
        scripts = [(folder / "js" / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
        assets = {
            "app.js": "\n".join(scripts),
            "site.css": plot_style() + (folder / "site.css").read_text(encoding="utf-8"),
            "theme.js": (folder / "js" / "theme.js").read_text(encoding="utf-8"),
        }
        return sum(self._text(f"assets/{name}", content) for name, content in assets.items())

    def _text(self, name: str, content: str) -> int:
        data = content.encode("utf-8")
        self._replace(self._out / name, data)
        self._sizes[name] = len(data)
        return len(data)

    def _replace(self, target: Path, data: bytes) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A reader of the site finds a file whole: the old one or the new one.
        staging = target.with_name(f".{target.name}.part")
        staging.write_bytes(data)
        staging.replace(target)


def _data_script(key: str, data: str) -> str:
    """A data file. Its JSON is parsed from a string: faster than a literal, and no key has a meaning."""
    # The backslash first: the others are escaped by one.
    quoted = data.replace("\\", "\\\\").replace("'", "\\'")
    return f"perfbisect.put('{key}',JSON.parse('{quoted}'));\n"
