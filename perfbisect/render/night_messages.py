"""A night as the JSON message that a webhook gets."""

from __future__ import annotations

from typing import Any

from perfbisect.render.night_words import failures, headline
from perfbisect.render.nightly_documents import NightlyDocument
from perfbisect.render.safe import line

SCHEMA = "perfbisect.nightly-message/1"


def json_message(document: NightlyDocument, *, link: str = "") -> dict[str, Any]:
    """The night for a program: a summary, the findings, the commits that were named, what failed.

    ``link``: where the job of it is shown. ``night`` is the same however often it is sent.
    """
    return {
        "schema": SCHEMA,
        "nightly": document.name,
        "night": document.night,
        "text": line(f"{document.name}: {headline(document)}"),
        "exit_code": document.exit_code,
        "commit": document.commit.id,
        "branch": document.branch,
        "engine_version": document.engine_version,
        "hardware": document.hardware,
        "alerts": [
            {
                "id": alert.id, "event": alert.event, "change": alert.change, "cell": alert.cell,
                "metric": alert.metric, "effect": alert.effect, "worse": alert.worse, "cause": alert.cause,
                "shape": alert.shape, "first": alert.first,
            }
            for alert in document.alerts
            if alert.counts
        ],
        "commits": [
            {
                "event": one.event, "id": one.culprit.id, "subject": one.culprit.subject,
                "probability": one.probability, "how": one.state,
            }
            for one in document.bisections
            if one.culprit is not None
        ],
        "failed": [{"what": what, "reason": reason} for what, reason in failures(document)],
        "link": link,
    }  # fmt: skip
