"""Reports and sentences of series: their templates, with the functions that these call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from statistics import median_high
from typing import Literal

from perfbisect.common.quantities import number, percent
from perfbisect.model.metric import find_metric, parse_metric, row
from perfbisect.report.document import Report
from perfbisect.report.template import render_report, render_sentences
from perfbisect.series.alerts import Alert, Event, group_by_event, leading_alert, weight
from perfbisect.series.detect import TrackDetectDocument
from perfbisect.series.detection.fdr import SeriesCoverage
from perfbisect.series.detection.model import FEWEST, SeriesRefusal
from perfbisect.series.nightly_report import TrackReportDocument
from perfbisect.series.points import night_of
from perfbisect.stats.two_sample import Scale

_TEMPLATES = "series/templates"


def detect_report(document: TrackDetectDocument, *, everything: bool = False) -> Report:
    """Report of ``track detect``; ``everything``: known events in full, too."""
    groups = group_by_event(document.alerts)
    shown = [alerts for alerts in groups if everything or any(alert.is_news for alert in alerts)]
    known = [alerts for alerts in groups if alerts not in shown]
    lasting = [alerts for alerts in known if not all(alert.is_settled for alert in alerts)]
    return series_report(
        "detect",
        document=document,
        everything=everything,
        shown=shown,
        known=lasting,
        over=len(known) - len(lasting),
    )


def nightly_report(document: TrackReportDocument) -> Report:
    """Report of ``track report``; events whose alerts are all closed are left out."""
    groups = group_by_event(document.detect.alerts)
    reported = [alerts for alerts in groups if any(alert.state != "closed" for alert in alerts)]
    due = [alerts for alerts in reported if any(alert.needs_action for alert in alerts)]
    outcome = Event.of(due[0]).measured if due else None
    return series_report(
        "nightly",
        document=document,
        reported=reported,
        due=due,
        closed=len(groups) - len(reported),
        following=outcome.report if outcome else document.detect.next,
    )


def series_report(name: str, **values: object) -> Report:
    """The report of a template of series."""
    return render_report(f"{_TEMPLATES}/{name}.md.jinja", {**FUNCTIONS, **values})


def sentences_of(
    about: Literal["differences", "evidence", "factors", "remarks", "radius", "refused", "suppressed"],
    items: Iterable[object],
) -> tuple[str, ...]:
    """A sentence for each of the items, as the reports have it."""
    return render_sentences(f"{_TEMPLATES}/sentences.md.jinja", {**FUNCTIONS, about: list(items)})


def change_text(metric: str, value: float | None) -> str:
    """A change of a metric: as a percentage, of a share as the difference."""
    if value is None:
        return "-"
    ref = find_metric(metric)
    return f"{value:+.3g}" if ref is not None and ref.metric.absolute else percent(value)


def _size_text(metric: str, effect: float) -> str:
    """+12.3 %, or x 24 where it is more than threefold; of a share the difference."""
    text = change_text(metric, effect)
    return f"x {number(1 + effect, 3)}" if effect > 2 and text.endswith("%") else text


def _times_text(shift: float, metric: str = "") -> str:
    """A worsening on a metric's scale as a percentage, a factor where it is large, or a difference of shares.

    Evidence may lack its metric: then larger is worse.
    """
    scale = Scale.of(row(metric)) if metric else Scale()
    effect = scale.effect(shift)
    if scale.absolute or abs(shift) <= math.log(1.5):
        return f"{effect:+.3g}" if scale.absolute else percent(effect)
    return f"{1 + effect:,.0f} times" if effect >= 99 else f"{1 + effect:.2g} times"


def _by_cell(alerts: Iterable[Alert]) -> list[tuple[Alert, int]]:
    """The weightiest alert of each cell, and how many more it has."""
    cells = groupby(sorted(alerts, key=lambda alert: alert.cell), key=lambda alert: alert.cell)
    return [(max(own, key=weight), len(own) - 1) for own in (list(group) for _, group in cells)]


def count_refusals(series: Iterable[SeriesCoverage]) -> Counter[SeriesRefusal]:
    """How many series were not judged, by reason: first those that are not to be, then those that cannot."""
    reasons = [entry.why for entry in series if entry.why is not None]
    return Counter(sorted(reasons, key=lambda why: why.kind in ("few nights", "not finite", "not positive")))


FUNCTIONS: Mapping[str, object] = {
    "by_cell": _by_cell,
    "change": change_text,
    "counts": Counter,
    "days_of": lambda nights: [night[5:] for night in nights],
    "direction": lambda metric: parse_metric(metric).metric.direction,
    "event_of": Event.of,
    "fewest_nights": FEWEST,
    "leading": leading_alert,
    "middle": median_high,
    "night_of": night_of,
    "refusals": count_refusals,
    "size": _size_text,
    "times": _times_text,
}
"""What the templates of series call."""
