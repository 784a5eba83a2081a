"""GitHub's REST API, as far as one comment needs it. The token goes to the API's own host alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import requests

from perfbisect.common.text import line
from perfbisect.errors import MachineError, UsageError
from perfbisect.redaction import without_secrets
from perfbisect.report.summary import MAX_COMMENT_BYTES, truncate
from perfbisect.system.http import Reply, failure_reason, open_session, send_request

TRIES: Final = 5
_LONGEST_WAIT_S = 300.0
_TIMEOUT_S = (10.0, 30.0)
_LIMIT_S = 60.0
_LARGEST = 8 << 20
_MOST_PAGES = 50
_HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_TRANSIENT = frozenset({408, 425, 429, *range(500, 600)})


class GitHub:
    """A repository's pull requests and comments. ``author``: the login that the token writes as."""

    def __init__(
        self,
        api: str,
        repository: str,
        token: str,
        author: str,
        *,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base, self._token, self._author = f"{api.rstrip('/')}/repos/{repository}", token, author
        self._wait, self._clock = wait, clock
        self._session = open_session(api, token=token)

    def pull(self, number: int) -> Mapping[str, Any]:
        """A pull request. :raises MachineError: no usable answer. :raises UsageError: it is not there."""
        found = self._send("GET", f"/pulls/{number}").json()
        if not isinstance(found, Mapping):
            raise self._unusable("something other than a pull request")
        return found

    def write(self, number: int, marker: str, body: str, known: int = 0) -> int:
        """Write the comment that begins with a marker: edit it where it is there; returns its id.

        ``known``: its id where it was written before.

        Raises:
            UsageError: the token may not write, or there is no such pull request.
            MachineError: no usable answer; the comment is there or not.
        """
        text = truncate(without_secrets(f"{marker}\n{body}", (self._token,)), MAX_COMMENT_BYTES)
        for last in (*[False] * (TRIES - 1), True):
            if found := known or self._find(number, marker):
                reply = self._send("PATCH", f"/issues/comments/{found}", text)
                if reply.status != 404:
                    return found
                known = 0  # it was deleted
            try:
                made = self._send("POST", f"/issues/{number}/comments", text, tries=1).json()
            except MachineError:
                # It may have been written for all that: it is looked for before another try.
                if last:
                    raise
                self._wait(2.0)
                continue
            if isinstance(made, Mapping) and type(made.get("id")) is int:
                return int(made["id"])
            raise self._unusable("something other than the comment")
        raise AssertionError

    def _find(self, number: int, marker: str) -> int:
        """The id of our comment with a marker; 0 without one."""
        for one in self._pages(f"/issues/{number}/comments"):
            user = one.get("user")
            # A marker can be copied: what others wrote is not edited.
            ours = isinstance(user, Mapping) and str(user.get("login")).lower() == self._author.lower()
            if ours and str(one.get("body") or "").startswith(marker) and type(one.get("id")) is int:
                return int(one["id"])
        return 0

    def _pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        page, query = f"{self._base}{path}", {"per_page": 100}
        for _ in range(_MOST_PAGES):
            reply = self._send("GET", page, query=query)
            found = reply.json()
            if not isinstance(found, list):
                raise self._unusable("something other than a list")
            yield from (one for one in found if isinstance(one, Mapping))
            page, query = reply.next_url, {}
            if not page:
                return

    def _send(
        self,
        method: str,
        path: str,
        text: str | None = None,
        *,
        query: Mapping[str, int] | None = None,
        tries: int = TRIES,
    ) -> Reply:
        """The answer to a request, which is sent again where that may help.

        Raises:
            UsageError: refused, or nothing there. Status 404 of an edit is an answer.
            MachineError: none in so many tries.
        """
        url = path if path.startswith("http") else f"{self._base}{path}"
        if urlsplit(url)[:2] != urlsplit(self._base)[:2]:
            raise self._unusable("an address on another host")
        for attempt in range(1, tries + 1):
            pause = 2.0**attempt
            try:
                reply = send_request(
                    self._session, method, url, _LARGEST, _LIMIT_S,
                    params=query, json=None if text is None else {"body": text}, headers=_HEADERS,
                    timeout=_TIMEOUT_S, allow_redirects=False,
                )  # fmt: skip
            except (requests.RequestException, ValueError) as error:
                reason = failure_reason(error, _TIMEOUT_S[1])
            else:
                limited = self._limited(reply)
                if limited is None and reply.status not in _TRANSIENT:
                    return self._checked(method, reply)
                reason, pause = f"status {reply.status}", max(pause, limited or 0.0)
            if attempt == tries or pause > _LONGEST_WAIT_S:
                break
            self._wait(pause)
        raise MachineError(
            f"GitHub did not answer: {reason}",
            where=self._base,
            next_step="run the CI job again: the comment is edited, and a job that has begun goes on",
        )

    def _limited(self, reply: Reply) -> float | None:
        """Seconds to wait for a rate limit, which is a 403 like a refusal; None: it is no limit."""
        if reply.status not in (403, 429):
            return None
        after, reset = (reply.headers.get(name, "") for name in ("retry-after", "x-ratelimit-reset"))
        if after.isdigit():
            return float(after)
        if reply.headers.get("x-ratelimit-remaining") == "0":
            return max(1.0, float(reset) - self._clock()) if reset.isdigit() else 60.0
        return 60.0 if "secondary rate limit" in reply.text else None

    def _checked(self, method: str, reply: Reply) -> Reply:
        if 200 <= reply.status < 300 or (method, reply.status) == ("PATCH", 404):
            return reply
        if reply.status in (401, 403, 404):
            raise UsageError(
                f"GitHub refuses the token or has nothing there (status {reply.status})",
                where=self._base,
                next_step="permissions: {pull-requests: write}; a fork's own workflows cannot write",
            )
        said = reply.json()
        message = str(said.get("message", "")) if isinstance(said, Mapping) else ""
        raise self._unusable(
            f"status {reply.status}: {line(without_secrets(message, (self._token,)))}".rstrip(": ")
        )

    def _unusable(self, what: str) -> MachineError:
        return MachineError(f"GitHub answered with {what}", where=self._base)
