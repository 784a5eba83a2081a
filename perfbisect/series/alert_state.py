"""``perfbisect track ack``, ``close``, ``reopen``: what people say of an alert."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfbisect.errors import UsageError
from perfbisect.series.alerts import Alert, State
from perfbisect.series.documents import TrackStateDocument
from perfbisect.series.render import effect_words
from perfbisect.series.series import CellSeries
from perfbisect.series.store import SeriesStore


def mark(store: SeriesStore, name: str, state: State, why: str) -> TrackStateDocument:
    """Writes down what was said of an alert, or of all alerts of an event.

    :raises UsageError: there is no such alert, or nothing was said.
    """
    if not why.strip():
        raise UsageError("--why says nothing", next_step='such as --why "issue 2711"')
    among = store.alerts.of_name(name)
    with store.transaction():
        for record in among:
            store.alerts.mark(record.alert.id, state, why.strip())
    first = among[0].alert
    return TrackStateDocument(
        id=first.id if len(among) == 1 else name,
        cell=first.cell,
        metric=first.metric,
        state=state,
        before=first.state,
        why=why.strip(),
        alerts=len(among),
    )


def marks(store: SeriesStore) -> Callable[[CellSeries], Mapping[int, str]]:
    """The alerts of a series, by the place at which each began: for the table of nights."""
    by_series: dict[tuple[str, str], list[Alert]] = {}
    for record in store.alerts.all():
        by_series.setdefault((record.alert.cell, record.alert.metric), []).append(record.alert)

    def of(series: CellSeries) -> dict[int, str]:
        found = {alert.first: alert for alert in by_series.get(series.key, [])}
        return {
            place: _mark(found[point.began])
            for place, point in enumerate(series.points)
            if point.began in found
        }

    return of


def _mark(alert: Alert) -> str:
    state = "" if alert.state == "open" else f", {alert.state}"
    return f"{effect_words(alert)} {alert.shape}, {alert.cause}{state} ({alert.id})"
