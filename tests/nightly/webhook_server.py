"""A webhook server on the loopback that records its requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from perfbisect.nightly.delivery import WEBHOOK_TRIES, read_target, send
from perfbisect.system.http import RetryPolicy
from tests import loopback

SECRET = "T0AAAAAAA/B0BBBBBBB/xyzxyzxyzxyz"
NAME = "NIGHTLY_WEBHOOK"


@dataclass
class Hook:
    """``answers``: (status, body, headers), one after another, the last for ever."""

    answers: list[tuple[int, str, dict[str, str]]]
    got: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    url: str = ""

    def variables(self, token: str = "") -> dict[str, str]:
        return {NAME: f"{self.url}/services/{SECRET}", f"{NAME}_TOKEN": token}

    def send(self, payload: dict[str, Any] | None = None, token: str = "") -> None:
        send(
            read_target(NAME, self.variables(token)),
            payload or {"text": "hello"},
            RetryPolicy("webhook", WEBHOOK_TRIES, wait=self.waited.append, say=self.said.append),
        )


@contextlib.contextmanager
def serve_hook(*answers: tuple[int, str, dict[str, str]]) -> Iterator[Hook]:
    hook = Hook(list(answers))

    class Handler(loopback.Handler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.got.append(json.loads(body))
            hook.tokens.append(self.headers.get("Authorization"))
            status, text, headers = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
            self.answer(status, text.encode(), headers)

    with loopback.serving(Handler) as address:
        hook.url = f"http://{address}"
        yield hook
