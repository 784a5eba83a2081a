"""Reports as HTML pages that open from disk.

A page with figures holds the plotting script and loads nothing; its policy lets no other script run than
those it was written with. Every text is made harmless and escaped where it is printed, whoever wrote it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfbisect.common.text import line, lines
from perfbisect.report.document import Code, Command, Figure, Report, parts_of
from perfbisect.report.flames import flame_boxes, flame_lines

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"
_VENDOR = Path(__file__).parent / "vendor"
_LONGEST = 8000


def report_html(report: Report, *, plots: str = "", home: str = "") -> str:
    """The page. ``plots``: where its plotting script is, if not in it; ``home``: the page that led here."""
    blocks = [*report.blocks, *(block for section in report.sections for block in section.blocks)]
    figures = {block.name: asdict(block.plot) for block in blocks if isinstance(block, Figure)}
    own = plot_script() if figures and not plots else ""
    script = _shipped("report.js") if figures else ""
    copy = _shipped("copy.js") if any(isinstance(block, Code | Command) for block in blocks) else ""
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            report=report,
            figures=figures,
            data=embedded_json(figures),
            style=_shipped("report.css") + (plot_style() if figures else ""),
            plots=own,
            plots_at=plots if figures else "",
            home=home,
            script=script,
            copy=copy,
            policy=_policy(*filter(None, (own, script, copy)), beside=bool(figures and plots)),
        )
    )


def embedded_json(value: object) -> str:
    """JSON that no HTML parser takes for markup, whatever stands in its strings."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def plot_script() -> str:
    """The script that draws figures: uPlot with its license, and ``drawPlot``."""
    return (_VENDOR / "uplot.js").read_text(encoding="utf-8") + _shipped("plot.js")


def plot_style() -> str:
    return (_VENDOR / "uplot.css").read_text(encoding="utf-8") + _shipped("plot.css")


@cache
def _environment() -> Environment:
    # Slow to import, and only a report needs it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def harmless(value: Any) -> Any:
        """Runs on whatever the template prints, before it is escaped; what is marked as safe is ours."""
        return line(value, _LONGEST) if isinstance(value, str) and not hasattr(value, "__html__") else value

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
    )
    environment.filters |= {
        "parts": parts_of,
        "lines": lines,
        "kind": lambda block: type(block).__name__,
        "boxes": flame_boxes,
        "outline": flame_lines,
    }
    return environment


def _policy(*scripts: str, beside: bool) -> str:
    """Nothing is loaded; of all scripts only these run, and the plotting script where it lies ``beside``."""
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in scripts
    ]
    # 'self' matches nothing in a page that is opened from disk.
    hashes += ["'self'", "file:"] * beside
    allowed = " ".join(hashes) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _shipped(name: str) -> str:
    """A file of this package, or of the templates that are shared with other pages."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")
