"""``perfbisect track ack``, ``close``, ``reopen``: what people say of an alert."""

from __future__ import annotations

from perfbisect.errors import UsageError
from perfbisect.render.detect_documents import DetectedDocument, TrackStateDocument
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
    more = f" and {len(among) - 1} more" if len(among) > 1 else ""
    return TrackStateDocument(
        id=first.id if len(among) == 1 else name,
        cell=first.cell + more,
        metric=first.metric,
        state=state,
        before=first.state,
        why=why.strip(),
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
