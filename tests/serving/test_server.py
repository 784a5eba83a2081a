"""When a server is ready, and what else answers: real HTTP servers that misbehave."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfbisect.errors import Interrupted, MachineError, ServerError
from perfbisect.serving.families import Endpoint, ProbeRequest, ServerCommand
from perfbisect.serving.server import Server
from perfbisect.system import ports, processes
from tests.system.stand_ins import ENV, listen, until

SCRIPT = """
import http.server, json, os, socket, sys, time
port, behaviour = int(sys.argv[1]), json.loads(sys.argv[2])
print("starting \\x1b[2J\\x1b]0;owned\\x07", flush=True)
time.sleep(behaviour.get("delay", 0))
began = time.monotonic()
if "exit" in behaviour:
    print("ValueError: no such head size", flush=True)
    sys.exit(behaviour["exit"])
if behaviour.get("mute"):
    time.sleep(60)

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = behaviour.get(self.path, [404, "not found"])
        if isinstance(reply, dict):
            reply = reply["at last"] if time.monotonic() > began + reply["after"] else reply["at first"]
        if reply == "die":
            os._exit(3)
        if reply == "hang":
            time.sleep(60)
        if reply == "drip":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        status, body = reply
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

class Listening(http.server.ThreadingHTTPServer):
    daemon_threads = True
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()

Listening(("127.0.0.1", port), Handler).serve_forever()
"""

NAMED = [200, {"object": "list", "data": [{"id": "ours"}]}]
REAL = [200, {"choices": [{"text": "a word"}], "usage": {"completion_tokens": 4}}]
GOOD = {"/v1/models": NAMED, "/v1/completions": REAL, "/health": [200, ""]}
RESETS = (ProbeRequest("/reset_prefix_cache", {}), ProbeRequest("/reset_mm_cache", {}))

Make = Callable[..., Server]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Server] = []

    def start(
        behaviour: dict[str, object], *, must: str = "choices.0.text", resets: tuple[ProbeRequest, ...] = ()
    ) -> Server:
        port = ports.free_port()
        argv = [sys.executable, "-c", SCRIPT, str(port), json.dumps(behaviour)]
        owned = processes.spawn(
            argv, env=ENV, cwd=tmp_path, log=tmp_path / "server.log", token=secrets.token_hex(8)
        )
        command = ServerCommand((), {}, ProbeRequest("/v1/completions", {"prompt": "x"}, must), resets)
        made.append(Server(owned, Endpoint(port, "ours"), command))
        return made[-1]

    yield start
    for server in made:
        processes.stop(server.owned, 0.0)


def ready(server: Server, limit: float = 20.0, first: float = 20.0, **options: object) -> None:
    server.wait_named(limit, **options)  # type: ignore[arg-type]
    server.first_answer(first, **options)  # type: ignore[arg-type]


def test_ready_server(make: Make) -> None:
    server = make({**GOOD, "delay": 0.3})
    ready(server)
    assert server.trouble() is None
    assert ports.check_ours(server.endpoint.port, server.owned.living, "now")


def test_proxies_of_the_user_are_not_asked(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    ready(make(GOOD))


@pytest.mark.parametrize("code", [0, 1, 42])
def test_exit_while_starting(make: Make, code: int) -> None:
    server = make({"exit": code, "delay": 0.2})
    with pytest.raises(
        ServerError, match=f"exit code {code} before it was ready: ValueError: no such head size"
    ) as told:
        server.wait_named(20.0)
    assert told.value.where == str(server.owned.log)
    assert "starting \\x1b[2J\\x1b]0;owned\\x07" in told.value.message
    assert "\x1b" not in told.value.message


def test_killed_by_the_machine(make: Make) -> None:
    server = make({"mute": True})
    os.kill(server.owned.pid, signal.SIGKILL)
    with pytest.raises(MachineError, match=r"signal 9 .* out of memory"):
        server.wait_named(20.0)


def test_never_ready(make: Make) -> None:
    with pytest.raises(ServerError, match=r"not ready after 1 s \(nothing listens on its port\)") as told:
        make({"mute": True}).wait_named(0.6)
    assert "starting" in told.value.message and told.value.next_step


@pytest.mark.parametrize("reply", [[503, "loading"], [200, "<html>"], [200, {"data": [1]}]])
def test_answers_but_names_no_model(make: Make, reply: list[object]) -> None:
    server = make({"/v1/models": reply})
    until(lambda: ports.listeners(server.endpoint.port))
    with pytest.raises(ServerError, match=rf"not ready after .*/v1/models: {reply[0]} "):
        server.wait_named(0.6)


def test_another_servers_model(make: Make) -> None:
    server = make({"/v1/models": [200, {"data": [{"id": "theirs"}, {"id": "also\x1b[2J"}]}]})
    with pytest.raises(ServerError, match=r"model 'ours' was requested, it serves 'theirs', 'also\\x1b\[2J'"):
        server.wait_named(20.0)


def test_stale_server_on_the_port(make: Make, tmp_path: Path) -> None:
    server = make({**GOOD, "delay": 0.5})
    stale = listen(tmp_path, server.endpoint.port, name="stale")
    try:
        with pytest.raises(ports.SharedPortError, match=rf"\(pid {stale.pid}\)"):
            server.wait_named(20.0)
    finally:
        processes.stop(stale, 0.0)


@pytest.mark.parametrize(
    "reply, said",
    [
        ([500, {"error": "engine"}], "refused: 500"),
        ([404, "no such model"], "refused: 404 no such model"),
        ([200, {"error": {"message": "engine is dead"}}], "an error, with status 200.*engine is dead"),
        ([200, 'data: {"error": "x"}\n\ndata: [DONE]\n'], "not JSON"),
        ([200, ""], r"not JSON.*\(empty\)"),
        ([200, {"choices": []}], "nothing at 'choices.0.text'"),
        ([200, {"choices": [{"text": ""}]}], "nothing at 'choices.0.text'"),
        ([200, [1]], "nothing at 'choices.0.text'"),
    ],
)
def test_first_answer_that_is_none(make: Make, reply: list[object], said: str) -> None:
    server = make({**GOOD, "/v1/completions": reply})
    server.wait_named(20.0)
    with pytest.raises(ServerError, match=said):
        server.first_answer(20.0)


def test_dies_at_the_first_request(make: Make) -> None:
    server = make({**GOOD, "/v1/completions": "die"})
    server.wait_named(20.0)
    with pytest.raises(ServerError, match="exit code 3 at the first request"):
        server.first_answer(20.0)


@pytest.mark.parametrize("reply", ["hang", "drip"])
def test_first_request_has_a_limit(make: Make, reply: str) -> None:
    server = make({**GOOD, "/v1/completions": reply})
    server.wait_named(20.0)
    with pytest.raises(ServerError, match=r"/v1/completions: no answer within 1 s"):
        server.first_answer(1.0)


@pytest.mark.parametrize("behaviour", [{"mute": True}, {**GOOD, "/v1/completions": "hang"}])
def test_stop_that_is_asked_for_is_prompt(make: Make, behaviour: dict[str, object]) -> None:
    server = make(behaviour)
    asked = threading.Event()
    timer = threading.Timer(0.5, asked.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        ready(server, 100.0, 100.0, stop_requested=asked.is_set)
    assert asked.is_set() and time.monotonic() - began < 60.0
    timer.join()


def test_what_is_wrong_with_a_server(make: Make) -> None:
    sick = make({**GOOD, "/health": [500, "engine dead"]})
    ready(sick)
    assert "/health: 500 engine dead" in str(sick.trouble())
    mute = make({**GOOD, "/v1/completions": "hang"})
    mute.wait_named(20.0)
    assert "no answer within 1 s" in str(mute.trouble(1.0))
    os.kill(mute.owned.pid, signal.SIGTERM)
    mute.owned.wait(10)
    assert "signal 15" in str(mute.trouble())


def test_server_that_closed_its_port(make: Make) -> None:
    server = make({"mute": True})
    with pytest.raises(ServerError, match="no longer listens"):
        server.check_ports("before run 1")


def test_caches_are_emptied_or_it_is_told_why_not(make: Make) -> None:
    done = {**GOOD, "/reset_prefix_cache": [200, ""], "/reset_mm_cache": [200, ""]}
    server = make(done, resets=RESETS)
    server.wait_named(20.0)
    assert server.reset_caches() == ""
    partly = make({**done, "/reset_mm_cache": [404, "Not Found"]}, resets=RESETS)
    partly.wait_named(20.0)
    assert partly.reset_caches() == "/reset_mm_cache: 404 Not Found"
    assert "no request" in make(GOOD).reset_caches()


def test_an_engine_that_still_holds_blocks_is_asked_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM answers 200 then, and says in the text that nothing was emptied."""
    held, free = [200, {"success": False}], [200, {"success": True}]
    reset = RESETS[:1]
    soon = make(
        {**GOOD, "/reset_prefix_cache": {"at first": held, "after": 1.0, "at last": free}}, resets=reset
    )
    soon.wait_named(20.0)
    assert soon.reset_caches() == ""
    monkeypatch.setattr("perfbisect.serving.server._HELD_PATIENCE", 0.3)
    never = make({**GOOD, "/reset_prefix_cache": held}, resets=reset)
    never.wait_named(20.0)
    assert never.reset_caches() == '/reset_prefix_cache: 200 {"success": false}'


def test_counters(make: Make) -> None:
    text = "vllm:prefix_cache_queries_total 10.0\nvllm:prefix_cache_hits_total 4.0\n"
    flight = 'vllm:num_requests_running{e="0"} 2\nvllm:num_requests_waiting{e="0"} 1\n'
    server = make({**GOOD, "/metrics": [200, text + flight]})
    server.wait_named(20.0)
    assert server.counters().stages == {"": {"prefix_queries": 10.0, "prefix_hits": 4.0}}
    assert server.in_flight() == 3
    silent = make(GOOD)
    silent.wait_named(20.0)
    assert silent.counters().stages == {}
    assert silent.in_flight() == 0


@pytest.mark.parametrize("reply", ["hang", "drip"])
def test_counters_that_never_come_are_none(make: Make, reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfbisect.serving.server._METRICS_LIMIT", 0.3)
    server = make({**GOOD, "/metrics": reply})
    server.wait_named(20.0)
    assert server.counters().stages == {}
    server.check_going("after it")
