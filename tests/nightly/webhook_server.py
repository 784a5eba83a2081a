"""A webhook server on the loopback that records its requests."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from perfbisect.nightly.delivery import read_target, send

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
            wait=self.waited.append,
            say=self.said.append,
        )


@contextlib.contextmanager
def serve_hook(*answers: tuple[int, str, dict[str, str]]) -> Iterator[Hook]:
    hook = Hook(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.got.append(json.loads(body))
            hook.tokens.append(self.headers.get("Authorization"))
            status, text, headers = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
            content = text.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    hook.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
