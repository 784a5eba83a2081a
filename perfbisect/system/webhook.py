"""One message to a webhook. Its address is a secret, as its token is: neither is shown, logged or raised.

A message that came to nobody is sent again, a few times; one that was refused is not. Whoever did not answer
in time may have got it: it is sent again too, and says which night it is of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

from perfbisect.errors import MachineError, UsageError
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
