"""A service with a REST API: its token, its pages, its limits and its moods.

The token goes nowhere but to the host it is for: over TLS (or to this machine), never to where a redirect
leads, never into a message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

from perfbisect.errors import MachineError, UsageError
from perfbisect.system.logs import neutral

_TRIES = 5
_PATIENCE = (5.0, 60.0)
"""Seconds to connect, and of silence."""
_LONGEST = 300.0
"""Seconds that a service may ask us to wait at once."""
_LARGEST = 64 * 1024 * 1024
_AGAIN = frozenset({429, 500, 502, 503, 504})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class NotThereError(UsageError):
    """Nothing is at an address: status 404."""


class _Bearer(requests.auth.AuthBase):
    """Set as an object, so that a ``.netrc`` of the user's does not take its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


@dataclass(frozen=True)
class _Reply:
    """An answer, read to its end; ``after``: where the next page is, empty after the last."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    after: str


@dataclass
class Rest:
    """A session with one service. ``limits``: names of the headers that tell what is left, and for how long.

    ``wait`` sleeps, ``say`` is told what is waited for.
    """

    base: str
    token: str
    what: str
    limits: tuple[str, str] = ("RateLimit-Remaining", "RateLimit-Reset")
    wait: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = lambda _: None
    _session: requests.Session = field(default_factory=requests.Session, repr=False)

    def __post_init__(self) -> None:
        """:raises UsageError: the token would go over the net in the clear."""
        parts = urlsplit(self.base)
        local = parts.hostname in _LOOPBACK
        if parts.scheme != "https" and not local:
            raise UsageError(f"{self.base}: the token is sent over https only", next_step="write https://")
        self._session.trust_env = not local
        self._session.auth = _Bearer(self.token)

    def pages(self, url: str, parameters: Mapping[str, str | int] | None = None) -> Iterator[Any]:
        """The items of a list, page after page, as the ``Link`` header leads."""
        after, told = url, parameters
        read: set[str] = set()
        while after:
            if after in read:
                raise self._odd(after, "a page that was read before: its pages lead in a circle")
            read.add(after)
            reply = self._get(after, told)
            items = self._json(reply, after)
            if not isinstance(items, list):
                raise self._odd(after, "no list")
            yield from items
            after, told = reply.after, None

    def json(self, url: str) -> Any:
        """One document."""
        return self._json(self._get(url, None), url)

    def text(self, url: str) -> str:
        """A file's text, wherever the service keeps it."""
        return self._get(url, None).content.decode("utf-8", "replace")

    def _get(self, url: str, parameters: Mapping[str, str | int] | None) -> _Reply:
        """:raises UsageError: not allowed, or not there. :raises MachineError: no answer that can be used."""
        if urlsplit(url).netloc != urlsplit(self.base).netloc:
            raise MachineError(f"{self.what} leads to another host", where=_plain(url))
        last = ""
        for attempt in range(_TRIES):
            pause = 2.0**attempt
            try:
                reply = self._read(url, parameters)
            except requests.RequestException as error:
                last = neutral(type(error).__name__, 60)
            else:
                if reply.status not in _AGAIN:
                    self._spare(reply)
                    return self._checked(reply, url)
                last = f"status {reply.status}"
                pause = self._asked(reply) or pause
            if attempt + 1 < _TRIES:
                self.say(f"{self.what}: {last}; again in {pause:.0f} s")
                self.wait(pause)
        raise MachineError(
            f"{self.what} gave no answer in {_TRIES} tries: {last}",
            where=_plain(url),
            next_step="try again later: what was read is kept",
        )

    def _read(self, url: str, parameters: Mapping[str, str | int] | None) -> _Reply:
        with self._session.get(url, params=dict(parameters or {}), timeout=_PATIENCE, stream=True) as reply:
            content = bytearray()
            for chunk in reply.iter_content(1 << 16):
                content += chunk
                if len(content) > _LARGEST:
                    raise MachineError(f"{self.what} sent more than {_LARGEST >> 20} MB", where=_plain(url))
            after = reply.links.get("next", {}).get("url", "")
            return _Reply(reply.status_code, reply.headers, bytes(content), after)

    def _asked(self, reply: _Reply) -> float:
        """Seconds that the service asks us to wait; 0 if it does not say."""
        for name in ("Retry-After", self.limits[1]):
            value = reply.headers.get(name, "")
            if value.isdigit():
                return min(float(value) + 1.0, _LONGEST)
        return 0.0

    def _spare(self, reply: _Reply) -> None:
        """Waits where nothing is left of the limit, instead of being refused."""
        if reply.headers.get(self.limits[0]) == "0" and (pause := self._asked(reply)):
            self.say(f"{self.what}: its limit is reached; on in {pause:.0f} s")
            self.wait(pause)

    def _checked(self, reply: _Reply, url: str) -> _Reply:
        if reply.status in (401, 403):
            raise UsageError(
                f"{self.what} refuses the token (status {reply.status})",
                where=_plain(url),
                next_step="give one that may read builds, artifacts and logs",
            )
        if reply.status == 404:
            raise NotThereError(f"{self.what} has nothing at this address", where=_plain(url))
        if reply.status != 200:
            raise self._odd(url, f"status {reply.status}")
        return reply

    def _json(self, reply: _Reply, url: str) -> Any:
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            raise self._odd(url, "no JSON") from None

    def _odd(self, url: str, what: str) -> MachineError:
        return MachineError(f"{self.what} answered with {what}", where=_plain(url))


def _plain(url: str) -> str:
    """An address without its query, in which a signature may stand."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"
