"""What ``track detect`` found, for a person: events first, the newest on top, then what was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from perfbisect.core.alert import Alert, leading_alert, weight
from perfbisect.render.detect_documents import TrackDetectDocument, TrackStateDocument
from perfbisect.render.numbers import number, percent
from perfbisect.render.safe import line
from perfbisect.render.track_lines import columns

_LISTED = 10
"""Changes that are no alerts, shown one by one."""


def detect_lines(document: TrackDetectDocument, *, everything: bool = False) -> Iterator[str]:
    """Events with something new in full; what was told before in one line each, unless ``everything``."""
    shown = False
    for event, alerts in events(document.alerts):
        if everything or any(alert.is_news for alert in alerts):
            yield from _event(event, alerts)
            shown = True
    if not shown:
        yield f"nothing new up to the night of {document.until}"
    yield from _before(document, everything)
    for one in document.together:
        yield (
            f"  after {one.after}, by {one.by}: {len(one.series)} series of {len(one.servers)} servers moved "
            f"together, none for certain by itself (p {one.p:.1g}): {line(', '.join(one.series[:3]))}"
        )
    yield from _listed(document)
    for mark in document.boundaries:
        yield f"  {mark.night}  {mark.kind} changed, {mark.series} series begin anew: {line(mark.what)}"
    yield from _census(document)
    first = next((a for a in document.alerts if a.state == "open" and a.cause == "product"), None)
    if first is not None:
        yield f"next: perfbisect track suspects {leading_alert(document.alerts, first.event).id} --repo PATH"


def events(alerts: Sequence[Alert]) -> list[tuple[str, list[Alert]]]:
    """Alerts by event: those of the product first, the newest of either first."""
    ordered = sorted(alerts, key=lambda a: a.event, reverse=True)
    ordered.sort(key=lambda a: (a.cause != "product", -int(a.event[:8])))
    return [(event, list(group)) for event, group in groupby(ordered, key=lambda a: a.event)]


def effect_words(alert: Alert) -> str:
    """The size of a change."""
    return size_words(alert.effect)


def size_words(effect: float) -> str:
    """``+12.3 %``, or ``x 24`` where it is more than threefold."""
    return f"x {number(1 + effect, 3)}" if effect > 2 else percent(effect)


def _event(event: str, alerts: Sequence[Alert]) -> Iterator[str]:
    first = leading_alert(alerts, event)
    cells = len({alert.cell for alert in alerts})
    shapes = "/".join(
        dict.fromkeys(alert.shape for alert in sorted(alerts, key=lambda alert: alert.size, reverse=True))
    )
    yield f"{first.first[:10]}  {first.cause}, {shapes}: {len(alerts)} alerts of {cells} cells  ({event})"
    for words in first.evidence[:3]:
        yield f"  {line(words)}"
    rows = []
    for _, group in groupby(sorted(alerts, key=lambda a: a.cell), key=lambda a: a.cell):
        of = list(group)
        one = max(of, key=weight)
        marks = [
            "" if one.worse else "better", "" if one.now == "still there" else one.now, _state(one),
            f"and {len(of) - 1} more metrics" if len(of) > 1 else "",
        ]  # fmt: skip
        low, high = one.interval
        between = (
            f"{percent(low)} to {percent(high)}"
            if one.effect <= 2
            else f"x {number(1 + low, 3)} to {number(1 + high, 3)}"
        )
        rows.append(
            (
                one.id,
                one.cell,
                one.metric,
                effect_words(one),
                between,
                f"{one.nights} night" + "s" * (one.nights > 1),
                ", ".join(filter(None, marks)),
            )
        )
    yield from (f"  {text}" for text in columns(rows, right=(3,)))
    yield ""


def _state(alert: Alert) -> str:
    if alert.state == "open":
        return "" if alert.new else f"told as {alert.was}" if alert.was else "told before"
    return f"{alert.state}: {alert.why}" if alert.why else alert.state


def _before(document: TrackDetectDocument, everything: bool) -> Iterator[str]:
    if not everything:
        over = 0
        for event, alerts in events(document.alerts):
            if any(alert.is_news for alert in alerts):
                continue
            if all((a.recovered and not a.came_back) or a.state == "closed" for a in alerts):
                over += 1
                continue
            states = Counter("open" if a.state == "open" else a.state for a in alerts)
            told = ", ".join(f"{count} {state}" for state, count in states.items())
            back = sum(alert.came_back for alert in alerts)
            yield f"told before: {event}, {told}" + (f"; {back} recovered since" if back else "")
        if over:
            yield f"told before, and over or closed: {over} event{'s' * (over > 1)} (--all)"
    for gone in document.gone:
        if gone.new or everything:
            what = f"{gone.id} {line(gone.cell)} {line(gone.metric)}"
            yield f"not found any more: {what}, found last on {gone.seen[:10]}"
    older = sum(not gone.new for gone in document.gone)
    if older and not everything:
        yield f"not found any more, and told before: {older} (--all)"


def _listed(document: TrackDetectDocument) -> Iterator[str]:
    shown = [one for one in document.listed if one.kind != "told by the median"]
    if shown:
        yield f"{len(shown)} changes are no alerts:"
    for one in sorted(shown, key=lambda one: one.first)[-_LISTED:]:
        yield f"  {one.first}  {line(one.cell)} {line(one.metric)} {percent(one.effect)}: {line(one.why)}"
    if len(shown) > _LISTED:
        yield f"  and {len(shown) - _LISTED} earlier ones (--json)"


def _census(document: TrackDetectDocument) -> Iterator[str]:
    census = document.census
    for family in census.families:
        yield (
            f"{family.judged} series of {family.name} judged, {family.alarmed} alarmed: at most "
            f"{document.fdr * 100:g} % of those by chance"
        )
    short = [one for one in census.series if one.smallest is not None]
    if short:
        steps, nights = (sorted(x) for x in zip(*((s.smallest or 0.0, s.nights) for s in short), strict=True))
        half = len(short) // 2
        yield (
            f"steps that would be seen: in half of the series of "
            f"{percent(steps[half], signed=False)} or less; "
            f"half of them have {nights[half]} nights or fewer"
        )
    refused = Counter(one.why for one in census.series if one.why)
    left = {**census.not_judged, **refused}
    if left:
        yield f"not judged: {'; '.join(f'{count} {line(why)}' for why, count in left.items())}"
    if census.builds_not_of_main:
        yield f"{census.builds_not_of_main} builds are not of main and were left out"


def state_lines(document: TrackStateDocument) -> Iterator[str]:
    """What was said of an alert, or of those of an event."""
    more = f" and {document.alerts - 1} more" if document.alerts > 1 else ""
    who = f"{document.id} {line(document.cell)} {line(document.metric)}{more}"
    yield f"{who}: {document.state}, was {document.before}"
