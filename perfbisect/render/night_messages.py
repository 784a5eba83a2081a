"""A night as a message to a webhook: JSON for whatever listens, or blocks as Slack takes them."""

from __future__ import annotations

from typing import Any

from perfbisect.render.night_words import alert_words, events, facts, failures, headline, search_words
from perfbisect.render.nightly_documents import NightlyDocument
from perfbisect.render.safe import line

SCHEMA = "perfbisect.nightly-message/1"

_SHOWN = 8
"""Rows of a block below its first; the report has them all."""

_HEADER, _SECTION = 150, 2900
"""Characters that Slack takes in a header, and (3,000) in a section."""


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


def slack_message(document: NightlyDocument, *, link: str = "") -> dict[str, Any]:
    """The night for people in a channel. ``text`` is what a notification shows."""
    title = f"{document.name}: {headline(document)}"
    named = [f"• {alert_words(told)}" for told in events(document) if told.first.counts]
    searched = [f"• {search_words(one)}" for one in document.bisections]
    failed = [f"• {what}: {reason}" for what, reason in failures(document)]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": line(title, _HEADER)}},
        _section([f"*{name}*: {_plain(value)}" for name, value in facts(document)]),
    ]
    for name, rows in (("What changed", named), ("Which commit", searched), ("What failed", failed)):
        if rows:
            blocks.append(_section([f"*{name}*", *map(_plain, rows)]))
    if link:
        blocks.append(_section([f"<{_plain(link).replace('|', '%7C')}|The job>"]))
    return {"text": _plain(line(title)), "blocks": blocks}


def _section(rows: list[str]) -> dict[str, Any]:
    """A block of rows; how many do not fit into it stands at its end."""
    text = ""
    for place, row in enumerate(rows):
        if place > _SHOWN or len(text) + len(row) > _SECTION:
            text += f"and {len(rows) - place} more"
            break
        text += f"{row}\n"
    return {"type": "section", "text": {"type": "mrkdwn", "text": text.rstrip("\n")}}


def _plain(text: str) -> str:
    """Text that mentions nobody and links nowhere: Slack's own escapes."""
    return line(text, 300).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
