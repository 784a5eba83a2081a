"""One message to a webhook. Its address is a secret, as its token is: neither is shown, logged or raised.

A message that came to nobody is sent again, a few times; one that was refused is not. Whoever did not answer
in time may have got it: it is sent again too, and says which night it is of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests

from perfbisect.errors import MachineError, UsageError
from perfbisect.system.environ import REDACTED, without_secrets
from perfbisect.system.logs import neutral

_TRIES = 4
_LONGEST = 120.0
"""Seconds that a service may ask us to wait: one that asks for more is given up."""
_SHOWN = 300
"""Bytes of an answer that are read."""
_REFUSED = frozenset({401, 403, 404, 410})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


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
        for secret in filter(None, (self.url, self.token, parts.path.strip("/"), parts.query, *long)):
            text = text.replace(secret, REDACTED)
        return without_secrets(text)


class _Bearer(requests.auth.AuthBase):
    """Set as an object, also without a token: a ``.netrc`` of the user's is for others."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def target(name: str, variables: Mapping[str, str]) -> Target:
    """The target whose address stands in the variable ``name``, and in ``NAME_TOKEN`` its token, if any.

    :raises UsageError: the variable is not set, or holds no address that may be used.
    """
    url = variables.get(name, "").strip()
    if not url:
        raise UsageError(
            f"{name} is not set: the address of the webhook", next_step=f"export {name}=https://..."
        )
    parts = urlsplit(url)
    if not parts.hostname or not (parts.scheme == "https" or parts.hostname in _LOOPBACK):
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
    last = ""
    for pause in _pauses():
        status, text, asked = _post(to, payload, patience)
        if 200 <= status < 300:
            return
        last = f"status {status}{text and f': {text}'}" if status else text
        if status in _REFUSED:
            raise UsageError(
                f"the webhook refuses the message: {last}", where=to.shown, next_step=f"set {to.name} again"
            )
        if status and status != 429 and status < 500:
            what = "leads elsewhere" if status < 400 else "refuses the message"
            raise MachineError(f"the webhook {what}: {last}", where=to.shown)
        rest = asked if asked is not None else pause
        if pause is None or rest is None:
            break
        if rest > _LONGEST:
            last += f", and asks to wait for {rest:.0f} s"
            break
        say(f"webhook: {last}; again in {rest:.0f} s")
        wait(rest)
    raise MachineError(
        f"the webhook did not take the message: {last}",
        where=to.shown,
        next_step="the report holds what it would have said",
    )


def _pauses() -> Iterator[float | None]:
    """Seconds after each try; None after the last."""
    for attempt in range(_TRIES - 1):
        yield 2.0**attempt
    yield None


def _post(
    to: Target, payload: Mapping[str, Any], patience: tuple[float, float]
) -> tuple[int, str, float | None]:
    """(status, the beginning of the answer, seconds that it asks to wait); status 0: there was none."""
    with requests.Session() as session:
        session.trust_env = urlsplit(to.url).hostname not in _LOOPBACK
        session.auth = _Bearer(to.token)
        try:
            with session.post(
                to.url, json=dict(payload), timeout=patience, stream=True, allow_redirects=False
            ) as reply:
                text = "" if reply.ok else _beginning(reply, patience[1])
                return reply.status_code, neutral(to.without(text), 200), _asked(reply)
        except (requests.RequestException, OSError, ValueError) as error:
            # The texts of these errors hold the address, or the token.
            silent = isinstance(error, requests.Timeout)
            return 0, f"no answer within {patience[1]:g} s" if silent else type(error).__name__, None


def _beginning(reply: requests.Response, limit: float) -> str:
    """The first line of an answer, within ``limit`` seconds in all."""
    content, until = b"", time.monotonic() + limit
    try:
        for piece in reply.iter_content(1):
            content += piece
            if len(content) >= _SHOWN or time.monotonic() > until:
                break
    except (requests.RequestException, OSError):
        pass
    return " ".join(content.decode("utf-8", "replace").split())


def _asked(reply: requests.Response) -> float | None:
    """Seconds, from ``Retry-After`` in either of its forms; None where it is not there."""
    told = reply.headers.get("Retry-After", "").strip()
    if told.isdigit():
        return float(told)
    try:
        moment = parsedate_to_datetime(told)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
