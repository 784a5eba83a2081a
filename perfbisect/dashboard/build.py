"""The static site: ``build(document, folder)``. It opens from disk and from any web host, and asks nobody.

The page reads its data from script files, since a browser fetches nothing from disk; what belongs to one cell
or one event is read when it is opened. Names of data files are made of their content: an old one in a cache
never stands beside a new page. The page's policy lets only the site's own files run.
"""

from __future__ import annotations

import filecmp
import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfbisect.bisect.report import build_report
from perfbisect.dashboard.data import cell_payload, event_payload, events, overview, page_of, text
from perfbisect.dashboard.site import SiteDocument
from perfbisect.errors import MachineError, UsageError
from perfbisect.report.html import embedded_json, report_html
from perfbisect.resources import dashboards_folder

if TYPE_CHECKING:
    from jinja2 import Environment

PLOTLY = "plotly.min.js"

_MARK = '<meta name="generator" content="perfbisect">'
_OURS = re.compile(r"(cell|event)-[0-9a-f]{16}\.js")
_SCRIPTS = (
    "state.js",
    "dom.js",
    "words.js",
    "draw.js",
    "series.js",
    "figure.js",
    "points.js",
    "panels.js",
    "overview.js",
    "cell.js",
    "alert.js",
    "compare.js",
    "bisections.js",
    "keys.js",
    "main.js",
)
"""In the order in which they are put together."""


@dataclass(frozen=True)
class WrittenSite:
    """What was written. ``first_page``: bytes that are read before anything is opened; ``plotly``: bytes of
    the plotting script, read with the first figure; ``all``: bytes of everything."""

    index: Path
    files: int
    first_page: int
    plotly: int
    all: int


def write_site(document: SiteDocument, out: Path) -> WrittenSite:
    """Writes the site into a folder, over an older one; other files there are left alone.

    :raises UsageError: the folder cannot be one, may not be written, or holds a page that is not ours.
    :raises MachineError: the disk fails. The site that was there is whole.
    """
    try:
        _check(out)
        return _Writer(out).write(document)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(
            f"the site cannot be written to {out}: {error}", next_step="another -o DIR"
        ) from error
    except OSError as error:
        raise MachineError(f"the site cannot be written: {error}", where=out) from error


def script(key: str, data: str) -> str:
    """A data file. Its JSON is read from a string: faster than a literal, and no key of it has a meaning."""
    quoted = data.replace("\\", "\\\\").replace("'", "\\'")
    return f"perfbisect.put('{key}',JSON.parse('{quoted}'));\n"


class _Writer:
    def __init__(self, out: Path) -> None:
        self._out = out
        self._sizes: dict[str, int] = {}

    def write(self, document: SiteDocument) -> WrittenSite:
        # The index comes last, and what it does not name goes after it: a page that is open stays whole.
        plotly = self._plotly()
        first = self._assets()
        cells = {cell.name: self._data("cell", cell_payload(cell)) for cell in document.cells}
        found = {event.id: self._data("event", event_payload(event, document)) for event in events(document)}
        for bisection in document.bisections:
            report = build_report(bisection.report)
            page = report_html(report, plotly=f"../{PLOTLY}", home="../index.html#/bisections")
            self._text(page_of(bisection.report), page)
        first += self._text("data/site.js", script("site", embedded_json(overview(document, cells, found))))
        first += self._text("index.html", _index(document))
        kept = {*cells.values(), *found.values()}
        for path in (self._out / "data").iterdir():
            if _OURS.fullmatch(path.name) and path.name not in kept:
                path.unlink()
        return WrittenSite(
            self._out / "index.html", len(self._sizes), first, plotly, sum(self._sizes.values())
        )

    def _data(self, what: str, payload: Mapping[str, Any]) -> str:
        """The name of the file that holds it, in ``data/``."""
        data = embedded_json(payload)
        name = f"{what}-{hashlib.sha256(data.encode()).hexdigest()[:16]}.js"
        self._text(f"data/{name}", script(name, data))
        return name

    def _assets(self) -> int:
        folder = dashboards_folder()
        app = "\n".join((folder / "js" / name).read_text(encoding="utf-8") for name in _SCRIPTS)
        style = (folder / "site.css").read_text(encoding="utf-8")
        theme = (folder / "js" / "theme.js").read_text(encoding="utf-8")
        return (
            self._text("assets/app.js", app)
            + self._text("assets/site.css", style)
            + self._text("assets/theme.js", theme)
        )

    def _plotly(self) -> int:
        # Slow to import, and only a site needs where it is.
        import plotly

        source = Path(plotly.__file__).parent / "package_data" / PLOTLY
        target = self._out / PLOTLY
        if not target.is_file() or not filecmp.cmp(source, target, shallow=False):
            self._whole(target, lambda staging: shutil.copyfile(source, staging))
        self._sizes[PLOTLY] = source.stat().st_size
        return self._sizes[PLOTLY]

    def _text(self, name: str, content: str) -> int:
        data = content.encode("utf-8")
        self._whole(self._out / name, lambda staging: staging.write_bytes(data))
        self._sizes[name] = len(data)
        return len(data)

    def _whole(self, target: Path, fill: Callable[[Path], object]) -> None:
        """A file is there whole or not at all."""
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_name(f".{target.name}.part")
        fill(staging)
        staging.replace(target)


def _check(out: Path) -> None:
    """:raises UsageError: a file is there, or a page that is not ours."""
    index = out / "index.html"
    if out.exists() and not out.is_dir():
        raise UsageError(f"the site needs a folder, and {out} is a file", next_step="another -o DIR")
    if index.exists() and _MARK not in index.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(
            f"{index} is not a page of perfbisect's, and is left as it is", next_step="another -o DIR"
        )


def _index(document: SiteDocument) -> str:
    return _environment().get_template("index.html.jinja").render(title=text(document.title))


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(dashboards_folder()), autoescape=True, undefined=StrictUndefined
    )
