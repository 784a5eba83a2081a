"""HTTP to a server of ours on the loopback: never through a proxy, always with a limit, bounded answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from perfbisect.system import threads
from perfbisect.system.logs import neutral

_LARGEST = 8 * 1024 * 1024


class NoAnswerError(Exception):
    """Nobody answered: refused, reset, too slow or too long. ``output``: what the system said of it."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class Answer:
    """A status and a text; shown as one short line. ``size`` in bytes, ``content_type`` as it was told."""

    status: int
    text: str
    content_type: str = ""
    size: int = 0

    def json(self) -> Any:
        """The text as JSON; None if it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    def __str__(self) -> str:
        if self.content_type.startswith(("audio/", "image/", "video/", "application/octet-stream")):
            return f"{self.status} {neutral(self.content_type, 60)}, {self.size} bytes"
        return f"{self.status} {neutral(' '.join(self.text.split()), 200) or '(empty)'}"


def get(url: str, limit: float) -> Answer:
    """:raises NoAnswerError: none within ``limit`` seconds of silence."""
    return _ask("GET", url, None, limit)


def post(url: str, body: Mapping[str, object], limit: float) -> Answer:
    """:raises NoAnswerError: none within ``limit`` seconds of silence."""
    return _ask("POST", url, body, limit)


class Call:
    """A request under way, so that the caller can watch something else meanwhile."""

    def __init__(
        self, method: str, url: str, body: Mapping[str, object] | None, limit: float, *, form: bool = False
    ) -> None:
        self._answer: Answer | None = None
        self._error: NoAnswerError | None = None
        self._limit = limit

        def work() -> None:
            try:
                self._answer = _ask(method, url, body, limit, form)
            except NoAnswerError as error:
                self._error = error

        # A daemon: whoever gives up on the answer ends the server, and with it the connection.
        self._thread = threading.Thread(target=work, name="request", daemon=True)
        threads.start(self._thread)

    def wait(self, seconds: float) -> bool:
        """True once it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> Answer:
        """:raises NoAnswerError: there was none."""
        if self._error is not None:
            raise self._error
        if self._answer is None:
            raise NoAnswerError(f"no answer within {self._limit:.0f} s")
        return self._answer


def _ask(
    method: str, url: str, body: Mapping[str, object] | None, limit: float, form: bool = False
) -> Answer:
    with requests.Session() as session:
        session.trust_env = False
        try:
            with session.request(
                method,
                url,
                **_sent(body, form),
                timeout=limit,
                stream=True,
                allow_redirects=False,
            ) as reply:
                content = b""
                for chunk in reply.iter_content(65536):
                    content += chunk
                    if len(content) > _LARGEST:
                        break
                return Answer(
                    reply.status_code,
                    content.decode("utf-8", "replace"),
                    reply.headers.get("content-type", ""),
                    len(content),
                )
        except (requests.RequestException, OSError) as error:
            cause = _innermost(error)
            if isinstance(cause, TimeoutError):
                raise NoAnswerError(f"no answer within {limit:.0f} s") from error
            said = neutral(f"{type(cause).__name__}: {cause}", 160)
            raise NoAnswerError(said, said) from error


def _sent(body: Mapping[str, object] | None, form: bool) -> dict[str, Any]:
    """The body as JSON, or as the fields of a multipart form, where bytes are a file."""
    if body is None:
        return {}
    if not form:
        return {"json": dict(body)}
    return {
        "files": {
            name: (name, value) if isinstance(value, bytes) else (None, str(value))
            for name, value in body.items()
        }
    }


def _innermost(error: BaseException) -> BaseException:
    """The first cause: a refused connection comes wrapped three times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error
