"""The report as one HTML page that opens from disk: verdict, figures, every launch, what was left out.

The page holds Plotly's script and loads nothing; its policy lets no other script run than the two it was
written with. Every text is made harmless and escaped where it is printed, whoever wrote it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfbisect.render.documents import ReportDocument
from perfbisect.render.figures import PHASES, figures
from perfbisect.render.levels import steps
from perfbisect.render.marks import Figure
from perfbisect.render.numbers import minutes, number, percent, probability, with_unit
from perfbisect.render.rows import effect_rows, version_rows
from perfbisect.render.safe import line

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parents[1] / "report" / "templates"
_LONGEST = 8000


@dataclass(frozen=True)
class Meaning:
    """What an outcome says, for a reader who meets the word for the first time."""

    title: str
    text: str


_MEANINGS: Mapping[str, Meaning] = {
    "found": Meaning(
        "Found",
        "The metric moves at this change: what was measured before it is at one level, what was measured "
        "from it on at another, and an A/B of it and its parent, made for this verdict alone, agrees.",
    ),
    "not reproduced": Meaning(
        "The two ends measure alike",
        "Good and bad were both measured on this machine and do not differ by what is worth telling: the "
        "difference was made elsewhere, or by something that this cell does not have.",
    ),
    "too small": Meaning(
        "Too small for the noise on this machine",
        "There may be a difference, but launches of one and the same change differ by as much: naming a "
        "change would be guessing.",
    ),
    "out of budget": Meaning(
        "The budget ended first",
        "No change stands out from the others yet. Everything measured is kept, and more minutes go on from "
        "here.",
    ),
    "inconclusive": Meaning(
        "Inconclusive",
        "The launches were chosen for another metric and do not settle this one; the text says what the rest "
        "would cost.",
    ),
    "unfinished": Meaning(
        "Not finished",
        "What was measured so far; the job is under way or was interrupted, and can be resumed.",
    ),
}


def html(report: ReportDocument, *, plotly: str = "", home: str = "") -> str:
    """The page. ``plotly``: where its plotting script is, if not in it; ``home``: the page that led here."""
    # Slow to import, as is jinja2 below, and only a report needs them.
    from plotly.offline import get_plotlyjs

    own = "" if plotly else get_plotlyjs().replace("\r\n", "\n")
    script = _shipped("report.js")
    culprits = report.culprits if report.outcome == "found" else ()
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            report=report,
            meaning=_MEANINGS[report.outcome],
            tiles=tiles(report),
            same=[change for position in culprits for change in position.changes[1:]],
            moved=bool(steps(report)),
            rows=effect_rows(report),
            slots=len({launch.slot for launch in report.launches}) > 1,
            phases=PHASES,
            versions=version_rows(report.versions),
            figures=(drawn := figures(report)),
            data=embedded(drawn),
            style=_shipped("report.css"),
            plotly=own,
            plotly_at=plotly,
            home=home,
            script=script,
            policy=_policy(*filter(None, (own, script)), beside=bool(plotly)),
        )
    )


def tiles(report: ReportDocument) -> list[tuple[str, str]]:
    """The few numbers that stand first: (number, what it is)."""
    out = []
    effect = report.confirmed or report.whole
    if effect is not None:
        which = "A/B of parent and culprit" if report.confirmed else "bad against good"
        out.append(
            (percent(effect.effect), f"{which}; 95 %: {percent(effect.low)} to {percent(effect.high)}")
        )
    if report.outcome == "found":
        out.append((probability(report.probability), "probability, given the model; never above 0.99"))
    elif report.beliefs is not None:
        out.append((probability(report.beliefs.none), "probability that nothing changed"))
    if report.share is not None:
        out.append((percent(report.share, False), "of the whole change is this step"))
    left = f"{len(report.skips)} skipped, {len(report.not_tested)} not tested"
    out.append((str(len(report.launches)), f"launches over {report.positions} environments; {left}"))
    saved = f"; {minutes(report.minutes.saved)} saved by overlap" if report.minutes.saved else ""
    out.append((minutes(report.minutes.total), f"of a budget of {minutes(report.minutes.budget)}{saved}"))
    return out


def embedded(value: Mapping[str, Figure]) -> str:
    """JSON that no HTML parser takes for markup, whatever stands in its strings."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def harmless(value: Any) -> Any:
        """Runs on whatever the template prints, before it is escaped; what is marked as safe is ours."""
        return line(value, _LONGEST) if isinstance(value, str) and not hasattr(value, "__html__") else value

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
    )
    made.filters |= {
        "percent": percent,
        "share": lambda value: percent(value, False),
        "probability": probability,
        "minutes": minutes,
        "number": number,
        "amount": with_unit,
    }
    return made


def _policy(*scripts: str, beside: bool) -> str:
    """Nothing is loaded; of all scripts only these run, and the plotting script where it lies ``beside``."""
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in scripts
    ]
    hashes += ["'self'", "file:"] * beside
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data: blob:"
    )


def _shipped(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
