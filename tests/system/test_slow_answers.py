"""A peer that sends a byte now and then does not extend a time limit; an answer that breaks off is none."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import requests

from perfbisect.environments.builders.wheel_index import WheelIndex
from perfbisect.errors import MachineError, ServerError
from perfbisect.serving.families import Endpoint, ProbeRequest, ServerCommand
from perfbisect.serving.server import Server
from perfbisect.system import http, processes
from perfbisect.system.http import LateAnswerError, NoAnswerError, RestClient
from tests.loopback import Handler, serving
from tests.system.stand_ins import start, told, until

LIMIT_S = 0.4


class Dripping(Handler):
    """Sends a byte each 50 ms: of its headers below ``/headers``, of its body elsewhere."""

    def do_GET(self) -> None:
        endless = b"HTTP/1.1 200 OK\r\nX-Long: " if "headers" in self.path else b"HTTP/1.1 200 OK\r\n\r\n"
        try:
            self.wfile.write(endless)
            while True:
                self.wfile.write(b"a")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            self.close_connection = True

    do_POST = do_HEAD = do_GET


class Breaking(Handler):
    """Closes the connection after the first chunk of its answer."""

    def do_GET(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.wfile.write(head + b"4\r\naaaa\r\n")
        self.close_connection = True


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler: type[BaseHTTPRequestHandler] = Dripping
    with serving(handler) as address:
        yield address


@pytest.mark.parametrize("path", ["/headers", "/body"])
def test_one_of_our_servers(address: str, path: str) -> None:
    with pytest.raises(NoAnswerError, match=r"no answer within 0\.4 s"):
        http.ask_server("GET", f"http://{address}{path}", LIMIT_S)


def test_an_answer_that_breaks_off() -> None:
    with serving(Breaking) as address, pytest.raises(NoAnswerError, match=r"^the answer broke off$"):
        http.ask_server("GET", f"http://{address}/", LIMIT_S)


@pytest.mark.parametrize("path", ["/headers", "/body"])
def test_a_download(address: str, path: str) -> None:
    client = RestClient(f"http://{address}", "", "The dashboard", limit_s=LIMIT_S)
    with pytest.raises(MachineError, match=r"no answer within 0\.4 s"):
        client.text(f"http://{address}{path}")


def test_an_index_of_wheels(address: str) -> None:
    index = WheelIndex(f"http://{address}/headers/{{commit}}/", "vllm", limit_s=LIMIT_S)
    assert index.size(f"http://{address}/headers") is None
    with pytest.raises(MachineError, match=r"no answer within 0\.4 s"):
        index.find(["a" * 40], "")


def test_meanwhile_is_called_and_may_end_the_wait(address: str) -> None:
    class EnoughError(Exception):
        pass

    calls: list[None] = []

    def meanwhile() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise EnoughError

    with requests.Session() as session, pytest.raises(EnoughError):
        http.send_request(session, "GET", f"http://{address}/", 10**6, 60.0, meanwhile=meanwhile)


def test_an_answer_in_time_and_an_error_pass() -> None:
    assert http.answer_within(LIMIT_S, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        http.answer_within(LIMIT_S, lambda: 1 // 0)
    assert issubclass(LateAnswerError, requests.RequestException)


DRIPS = """
import socket, threading, time
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
print("port", s.getsockname()[1], flush=True)
def drip(connection):
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nX-Long: ")
    while True:
        connection.sendall(b"a")
        time.sleep(0.05)
while True:
    threading.Thread(target=drip, args=(s.accept()[0],), daemon=True).start()
"""


def test_a_server_that_drips_is_not_ready_in_time(tmp_path: Path) -> None:
    """Models, first request and metrics of a real process."""
    owned = start(tmp_path, DRIPS, token=secrets.token_hex(16))
    try:
        until(lambda: (tmp_path / "out.log").exists())
        endpoint = Endpoint(int(told(tmp_path / "out.log", "port")), "a-model")
        request = ProbeRequest("/v1/completions", {"prompt": "x"})
        server = Server(owned, endpoint, ServerCommand((), {}, request))
        with pytest.raises(ServerError, match=r"not ready after \d s \(/v1/models: no answer"):
            server.wait_named(LIMIT_S)
        with pytest.raises(ServerError, match=r"/v1/completions: no answer within 0\.4 s"):
            server.first_answer(LIMIT_S)
        assert server.counters(LIMIT_S).stages == {}
    finally:
        processes.stop(owned, 0.0)
