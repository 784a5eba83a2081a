"""``perfbisect track ack``, ``close``, ``reopen``: what people say of an alert."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfbisect.core.reported_series import CellSeries
from perfbisect.errors import UsageError
from perfbisect.render.detect_documents import DetectedDocument, TrackStateDocument
from perfbisect.render.detect_lines import effect_words
from perfbisect.store.alerts import State, Told
from perfbisect.store.series import SeriesStore


def mark(store: SeriesStore, name: str, state: State, why: str) -> TrackStateDocument:
    """Writes down what was said of an alert, or of all alerts of an event.

    :raises UsageError: there is no such alert, or nothing was said.
    """
    if not why.strip():
        raise UsageError("--why says nothing", next_step='such as --why "issue 2711"')
    among = named(store, name)
    with store.transaction():
        for one in among:
            store.alerts.mark(one.id, state, why.strip())
    first = among[0]
    return TrackStateDocument(
        id=first.id if len(among) == 1 else name,
        cell=first.cell,
        metric=first.metric,
        state=state,
        before=first.state,
        why=why.strip(),
        alerts=len(among),
    )


def named(store: SeriesStore, name: str) -> tuple[Told, ...]:
    """The alert of a name, or all of an event.

    :raises UsageError: there is none, or there are several alerts whose names begin so.
    """
    of_event = tuple(one for one in store.alerts.all() if told(one).event == name)
    return of_event or (store.alerts.get(name),)


def told(one: Told) -> DetectedDocument:
    """What was told of an alert, as it stands now."""
    document = DetectedDocument.model_validate_json(one.document)
    return document.model_copy(update={"state": one.state, "why": one.why, "new": False})


def marks(store: SeriesStore) -> Callable[[CellSeries], Mapping[int, str]]:
    """What was told of a series, by the place at which it began: for the table of nights."""
    by_series: dict[tuple[str, str], list[DetectedDocument]] = {}
    for one in store.alerts.all():
        by_series.setdefault((one.cell, one.metric), []).append(told(one))

    def of(series: CellSeries) -> dict[int, str]:
        found = {alert.first: alert for alert in by_series.get(series.key, [])}
        return {
            place: _mark(found[point.began])
            for place, point in enumerate(series.points)
            if point.began in found
        }

    return of


def _mark(alert: DetectedDocument) -> str:
    state = "" if alert.state == "open" else f", {alert.state}"
    return f"{effect_words(alert)} {alert.shape}, {alert.cause}{state} ({alert.id})"
