"""One message to a webhook. Its address is a secret, as its token is: neither is shown, logged or raised.

A message that came to nobody is sent again, a few times; one that was refused is not. Whoever did not answer
in time may have got it: it is sent again too, and says which night it is of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from perfbisect.common.text import line
from perfbisect.errors import MachineError, UsageError
from perfbisect.nightly.documents import NightlyDocument
from perfbisect.nightly.render import failures, headline
from perfbisect.system.environ import REDACTED, without_secrets
from perfbisect.system.http import RetryPolicy, failure_reason, is_safe_for_token, open_session
from perfbisect.system.logs import neutral

_TRIES = 4
_SHOWN = 300
"""Bytes of an answer that are read."""
_REFUSED = frozenset({401, 403, 404, 410})


@dataclass(frozen=True)
class Target:
    """Where a message goes. ``name``: the variable that holds the address, as which it is told."""

    name: str
    url: str = field(repr=False)
    token: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """The address without what is secret of it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}/{REDACTED}"

    def without(self, text: str) -> str:
        """A text in which nothing of address or token stands."""
        parts = urlsplit(self.url)
        long = [word for word in parts.path.split("/") if len(word) > 5]
        return without_secrets(text, (self.url, self.token, parts.path.strip("/"), parts.query, *long))


def target(name: str, variables: Mapping[str, str]) -> Target:
    """The target whose address stands in the variable ``name``, and in ``NAME_TOKEN`` its token, if any.

    :raises UsageError: the variable is not set, or holds no address that may be used.
    """
    url = variables.get(name, "").strip()
    if not url:
        raise UsageError(
            f"{name} is not set: the address of the webhook", next_step=f"export {name}=https://..."
        )
    if not is_safe_for_token(url):
        raise UsageError(f"{name} holds no https address", next_step=f"export {name}=https://...")
    return Target(name, url, variables.get(f"{name}_TOKEN", "").strip())


def send(
    to: Target,
    payload: Mapping[str, Any],
    *,
    wait: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda _: None,
    patience: tuple[float, float] = (5.0, 30.0),
) -> None:
    """Posts ``payload`` as JSON. ``patience``: seconds to connect, and of silence.

    :raises UsageError: the address or the token is refused.
    :raises MachineError: the message is refused, or nobody answers as a webhook does.
    """
    status, reason = _post(to, payload, RetryPolicy("webhook", _TRIES, wait=wait, say=say), patience)
    if 200 <= status < 300:
        return
    if status in _REFUSED:
        raise UsageError(
            f"the webhook refuses the message: {reason}", where=to.shown, next_step=f"set {to.name} again"
        )
    if 300 <= status < 500 and status != 429:
        what = "leads elsewhere" if status < 400 else "refuses the message"
        raise MachineError(f"the webhook {what}: {reason}", where=to.shown)
    raise MachineError(
        f"the webhook did not take the message: {reason}",
        where=to.shown,
        next_step="the report holds what it would have said",
    )


def _post(
    to: Target, payload: Mapping[str, Any], retries: RetryPolicy, patience: tuple[float, float]
) -> tuple[int, str]:
    """(status, what came back); status 0: nothing did."""
    try:
        with (
            open_session(to.url, token=to.token, retries=retries) as session,
            session.post(
                to.url, json=dict(payload), timeout=patience, stream=True, allow_redirects=False
            ) as response,
        ):
            status, content = response.status_code, b""
            # A message that was taken is never sent again because of what came with the status.
            if not response.ok:
                content = next(response.iter_content(_SHOWN), b"")
    except (requests.RequestException, OSError, ValueError) as error:
        return 0, failure_reason(error, patience[1])
    text = neutral(" ".join(to.without(content.decode("utf-8", "replace")).split()), 200)
    return status, f"status {status}" + (f": {text}" if text else "")


VARIABLE = "GITHUB_STEP_SUMMARY"

MOST = 1024 * 1024
"""Bytes that GitHub takes of a step; of a longer file it takes nothing at all."""

LEAST = 2048
"""Bytes below which nothing is worth saying."""


def summary_file(variables: Mapping[str, str]) -> Path | None:
    """The file of this step; None outside GitHub Actions."""
    told = variables.get(VARIABLE, "")
    return Path(told) if told else None


def room(path: Path) -> int:
    """Bytes that may still be appended."""
    try:
        return max(0, MOST - path.stat().st_size)
    except OSError:
        return MOST


def append(path: Path, text: str) -> None:
    """:raises MachineError: the file cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise MachineError(
            f"the job summary cannot be written: {error.strerror or error}", where=path
        ) from error


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
