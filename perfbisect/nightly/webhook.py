"""Posts a night to a webhook; its address and token are secrets that are never shown, logged or raised.

A message that was not delivered is sent again, a few times; one that was refused is not. After a timeout the
receiver may get it twice, and recognises it by its ``night``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

from perfbisect.common.text import line
from perfbisect.errors import MachineError, UsageError
from perfbisect.nightly.model import Night
from perfbisect.nightly.report import night_verdict
from perfbisect.system.environ import REDACTED, without_secrets
from perfbisect.system.http import RetryPolicy, failure_reason, is_safe_for_token, open_session
from perfbisect.system.logs import neutral

SCHEMA = "perfbisect.nightly-message/1"

_TRIES = 4
_MAX_RESPONSE_BYTES = 300
_REFUSED = frozenset({401, 403, 404, 410})


@dataclass(frozen=True)
class WebhookTarget:
    """Where a message goes. ``name``: the variable with the address."""

    name: str
    url: str = field(repr=False)
    token: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """The address without its secret part."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}/{REDACTED}"

    def redact(self, text: str) -> str:
        """Remove everything of address and token from a text."""
        parts = urlsplit(self.url)
        long = [word for word in parts.path.split("/") if len(word) > 5]
        return without_secrets(text, (self.url, self.token, parts.path.strip("/"), parts.query, *long))


def read_target(name: str, variables: Mapping[str, str]) -> WebhookTarget:
    """Read the address from the variable ``name``, and an optional token from ``NAME_TOKEN``."""
    url = variables.get(name, "").strip()
    if not url:
        raise UsageError(
            f"{name} is not set: the address of the webhook", next_step=f"export {name}=https://..."
        )
    if not is_safe_for_token(url):
        raise UsageError(f"{name} is no https address", next_step=f"export {name}=https://...")
    return WebhookTarget(name, url, variables.get(f"{name}_TOKEN", "").strip())


def send(
    target: WebhookTarget,
    payload: Mapping[str, Any],
    *,
    wait: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda _: None,
    timeouts_s: tuple[float, float] = (5.0, 30.0),
) -> None:
    """Post ``payload`` as JSON. ``timeouts_s``: to connect, and between bytes.

    Raises:
        UsageError: the address or the token is refused.
        MachineError: the message is refused or was not delivered.
    """
    status, reason = _post(target, payload, RetryPolicy("webhook", _TRIES, wait=wait, say=say), timeouts_s)
    if 200 <= status < 300:
        return
    if status in _REFUSED:
        raise UsageError(
            f"the webhook refuses the message: {reason}",
            where=target.shown,
            next_step=f"set {target.name} again",
        )
    if 300 <= status < 500 and status != 429:
        problem = "redirects" if status < 400 else "refuses the message"
        raise MachineError(f"the webhook {problem}: {reason}", where=target.shown)
    raise MachineError(
        f"the webhook did not take the message: {reason}",
        where=target.shown,
        next_step="the report of the night has the same content",
    )


_ALERT_FIELDS = {"id", "event", "change", "cell", "metric", "effect", "worse", "cause", "shape", "first"}


def message(night: Night, *, link: str = "") -> dict[str, Any]:
    """The night for a program; ``night`` identifies repeated messages. ``link``: the CI job."""
    return {
        "schema": SCHEMA,
        "nightly": night.name,
        "night": night.night,
        "text": line(f"{night.name}: {night_verdict(night).text}"),
        "exit_code": night.exit_code,
        "commit": night.commit.id,
        "branch": night.branch,
        "engine_version": night.engine_version,
        "hardware": night.hardware,
        "alerts": [alert.model_dump(include=_ALERT_FIELDS) for alert in night.alerts if alert.counts],
        "commits": [
            {
                "event": bisection.event,
                "id": bisection.culprit.id,
                "subject": bisection.culprit.subject,
                "probability": bisection.probability,
                "how": bisection.state,
            }
            for bisection in night.bisections
            if bisection.culprit is not None
        ],
        "failed": [{"what": name, "reason": reason} for name, reason in night.failed()],
        "link": link,
    }


def _post(
    target: WebhookTarget,
    payload: Mapping[str, Any],
    retries: RetryPolicy,
    timeouts_s: tuple[float, float],
) -> tuple[int, str]:
    """Return the status and the reason; status 0 if there was no response."""
    try:
        with (
            open_session(target.url, token=target.token, retries=retries) as session,
            session.post(
                target.url, json=dict(payload), timeout=timeouts_s, stream=True, allow_redirects=False
            ) as response,
        ):
            status, content = response.status_code, b""
            # A delivered message must not be sent again because its response cannot be read.
            if not response.ok:
                content = next(response.iter_content(_MAX_RESPONSE_BYTES), b"")
    except (requests.RequestException, OSError, ValueError) as error:
        return 0, failure_reason(error, timeouts_s[1])
    text = neutral(" ".join(target.redact(content.decode("utf-8", "replace")).split()), 200)
    return status, f"status {status}" + (f": {text}" if text else "")
