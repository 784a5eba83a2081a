"""HTTP servers of the tests, on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes, Mapping[str, str]]
"""Status, body and headers."""


class Handler(BaseHTTPRequestHandler):
    """Answers with a whole body, and logs nothing."""

    def answer(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        with suppress(ConnectionError):  # who gave up reads no answer
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address, ``HOST:PORT``, of a server that answers until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(answer: Callable[[str], Answer]) -> Iterator[str]:
    """:func:`serving` of what a function answers to a path, whatever the method."""

    class OfPath(Handler):
        def do_GET(self) -> None:
            self.answer(*answer(self.path))

        do_HEAD = do_POST = do_GET

    with serving(OfPath) as address:
        yield address
