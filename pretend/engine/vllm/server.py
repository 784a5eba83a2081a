"""The API server: the routes of the real one that a benchmark needs, over real HTTP with streaming."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import vllm

from . import faults, pace, processes
from .counters import Counters, counter_lines
from .noise import Noise
from .prefix_cache import PrefixCache

DIE_AT_REQUEST = 5
"""With the fault ``die_in_bench`` the engine dies at this completion."""

CHAT = "/v1/chat/completions"

CORE_FAILED = "EngineCore encountered an issue."

VANISHED = (
    "(APIServer pid=1) WARNING 11-21 12:59:11 [core_client.py:817] [shutdown] MPClient: engine core exited "
    "unexpectedly; starting cleanup"
)
"""What the real API server says, and all it says, when its core was killed; it then ends with code 0."""


def failure(message, kind="InternalServerError", status=500):
    """The body of an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Engine:
    """What all requests of one launch share."""

    def __init__(self, options):
        names = options.served_model_name or [options.model]
        self.model = "somebody-elses-model" if faults.wanted("wrong_model") else names[0]
        self.max_model_len = options.max_model_len
        self.cache = PrefixCache(options.enable_prefix_caching)
        self.noise = Noise(options.port, self.model)
        self.counters = Counters()
        self.completions = 0
        self.streams = 0
        self.running = 0
        self.children = ()
        self._lock = threading.Lock()

    def count(self, stream):
        """Count a completion, and a streamed one; returns both counts."""
        with self._lock:
            self.completions += 1
            self.streams += stream
            return self.completions, self.streams

    def die(self):
        """End as a real engine whose core has died: at once, with children and open connections."""
        print("(EngineCore) ERROR EngineCore encountered a fatal error.", file=sys.stderr, flush=True)
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os._exit(1)

    def check(self):
        """End if the engine's core has been killed: no token comes from a dead engine."""
        if self.children and not processes.alive(self.children[0]):
            print(VANISHED, flush=True)
            os._exit(0)

    def tokens(self, prompt, count):
        """Yield the token texts of a completion, each when it is due."""
        words = prompt.split() if isinstance(prompt, str) else list(prompt)
        cached = self.cache.look_up(words)
        with self._lock:
            self.running += 1
        try:
            yield from self._timed(count, cached, len(words))
        finally:
            with self._lock:
                self.running -= 1
        self.noise.finished()

    def _timed(self, count, cached, prompt_tokens):
        factor = self.noise.request()
        arrived = due = time.monotonic()
        queued = factor * pace.QUEUE_MS / 1e3
        due += queued + factor * pace.PREFILL_MS / 1e3 * (1.0 - (1.0 - pace.CACHED_SHARE) * cached)
        if faults.wanted("short_outputs"):
            count = max(1, count // 2)
        first = None
        for index in range(count):
            time.sleep(max(0.0, due - time.monotonic()))
            self.check()
            last = time.monotonic()
            first = last if first is None else first
            self.counters.iteration(0 if index else prompt_tokens)
            if index == count - 1:
                self.counters.finished(arrived=arrived, queued=queued, first=first, last=last)
            yield f" w{index}"
            due += factor * pace.STEP_MS / 1e3

    def metrics(self):
        """The Prometheus page, with the counters of the prefix cache."""
        label = f'{{engine="0",model_name="{self.model}"}}'
        queries, hits = float(self.cache.queries), float(self.cache.hits)
        lines = [
            *counter_lines("vllm:prefix_cache_queries", "Queried tokens.", label, queries),
            *counter_lines("vllm:prefix_cache_hits", "Tokens that were cached.", label, hits),
            *counter_lines("vllm:request_success", "Finished requests.", label, float(self.completions)),
        ]
        for state, value in (("running", self.running), ("waiting", 0)):
            lines.append(f"vllm:num_requests_{state}{label} {value}.0")
        lines += self.counters.lines(label)
        page = "\n".join(lines) + "\n"
        return page[: len(page) // 2].rstrip("\n") if faults.wanted("half_metrics") else page


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine = None

    def log_message(self, template, *values):
        """Access log lines, as the real server writes them."""
        print(
            f"INFO:     {self.client_address[0]}:{self.client_address[1]} - {template % values}", flush=True
        )

    def _send(self, status, body, kind="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status, message, kind="BadRequestError"):
        self._send(status, failure(message, kind, status))

    def do_GET(self):
        """Models, health, version, metrics."""
        path = self.path.partition("?")[0]
        if path == "/v1/models":
            model = {
                "id": self.engine.model,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
            }
            model["max_model_len"] = self.engine.max_model_len
            self._send(200, {"object": "list", "data": [model]})
        elif path == "/health":
            self._send(200, "")
        elif path == "/version":
            self._send(200, {"version": vllm.__version__})
        elif path == "/metrics" and not faults.wanted("no_metrics"):
            self._send(200, self.engine.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._error(404, "Not Found", "NotFoundError")

    def do_POST(self):
        """Completions, and the reset of the prefix cache where the developer mode is on."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/reset_prefix_cache" and os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            if not faults.wanted("no_reset"):
                self.engine.cache.reset()
            self._send(200, "")
        elif path in ("/v1/completions", CHAT):
            try:
                asked = json.loads(body)
            except ValueError as error:
                self._error(400, f"JSON decode error: {error}")
            else:
                self._complete(asked)
        else:
            self._error(404, "Not Found", "NotFoundError")

    def _complete(self, asked):
        if asked.get("model") not in (None, self.engine.model):
            self._error(404, f"The model `{asked['model']}` does not exist.", "NotFoundError")
            return
        stream = bool(asked.get("stream"))
        completions, streams = self.engine.count(stream)
        if faults.wanted("die_at_first") or (faults.wanted("die_in_bench") and completions >= DIE_AT_REQUEST):
            self.engine.die()
        while not processes.alive(self.engine.children[0]):
            time.sleep(1.0)  # No token comes without the core; the server is about to end.
        said = " ".join(message["content"] for message in asked.get("messages") or ())
        prompt, count = asked.get("prompt") or said, asked.get("max_tokens") or 16
        if len(prompt.split()) + count > self.engine.max_model_len:
            self._error(400, f"This model's maximum context length is {self.engine.max_model_len} tokens.")
        elif not stream:
            self._whole(prompt, count)
        elif faults.wanted("nothing_completed") or (faults.wanted("some_failed") and streams % 3 == 0):
            self._send(500, failure(f"{CORE_FAILED} See stack trace (above) for the root cause."))
        else:
            self._streamed(prompt, count, (asked.get("stream_options") or {}).get("include_usage"), streams)

    def _envelope(self, prompt, text, produced, reason):
        total = len(prompt.split())
        usage = {"prompt_tokens": total, "completion_tokens": produced, "total_tokens": total + produced}
        return {
            "id": f"cmpl-{os.urandom(8).hex()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.engine.model,
            "choices": [
                {
                    "index": 0,
                    **({"delta": {"content": text}} if self.path == CHAT else {"text": text}),
                    "logprobs": None,
                    "finish_reason": reason,
                }
            ],
            "usage": usage,
        }

    def _whole(self, prompt, count):
        if faults.wanted("error_body"):
            self._send(200, failure("EngineCore died"))
            return
        while faults.wanted("silent"):
            time.sleep(1.0)
        words = list(self.engine.tokens(prompt, count))
        words = ["!"] * len(words) if faults.wanted("nonsense") else words
        self._send(200, self._envelope(prompt, "".join(words), len(words), "length"))

    def _streamed(self, prompt, count, usage, number):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        produced = 0
        is_mute = faults.wanted("mute_in_bench") and number >= DIE_AT_REQUEST
        if is_mute:
            self._event(self._envelope(prompt, "", 0, "stop") | {"usage": None})
        for word in () if is_mute else self.engine.tokens(prompt, count):
            produced += 1
            reason = "length" if produced == count else None
            self._event(self._envelope(prompt, word, produced, reason) | {"usage": None})
            if faults.wanted("error_stream"):
                self._event(failure(CORE_FAILED))
                break
            if faults.wanted("stall") or (faults.wanted("stall_in_bench") and number >= DIE_AT_REQUEST):
                time.sleep(processes.LIFETIME_SECONDS)
        if usage:
            self._event(self._envelope(prompt, "", produced, None) | {"choices": []})
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, value):
        data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """Listens with SO_REUSEPORT as the real engine does: a stale server on the same port may answer."""

    daemon_threads = True
    request_queue_size = 128

    def server_bind(self):
        """Bind, sharing the port."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address):
        """A client that has gone is no event."""


def compile_once():
    """Compile if the caches are empty, as torch.compile does, and say how long it took."""
    compiled = Path(os.environ.get("VLLM_CACHE_ROOT", "/nowhere")) / "compiled"
    if pace.COMPILE_MS and not compiled.exists():
        time.sleep(pace.COMPILE_MS / 1e3)
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.touch()
        took = f"torch.compile took {pace.COMPILE_MS / 1e3:.2f} s in total"
        print(f"(Worker pid=1) INFO 11-21 12:16:50 [monitor.py:81] {took}")


def serve(options):
    """Start the engine processes, open the port when they are there, serve until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if faults.wanted("ignore_term") else lambda *_: stop.set())
    engine = Engine(options)
    engine.children = processes.start_engine()
    compile_once()
    print(f"(Worker pid=1) INFO 11-21 12:16:50 [runner.py:1] Model loading took {pace.MODEL_GIB:.4f} GiB")
    print(
        f"(EngineCore pid=1) INFO 11-21 12:16:51 [kv_cache_utils.py:1] GPU KV cache size: "
        f"{int(pace.KV_TOKENS):,} tokens"
    )
    stop.wait(pace.START_MS / 1e3)
    if faults.wanted("slow_ready"):
        stop.wait(float(os.environ.get("PRETEND_SLOW_SECONDS", "2")))
    while faults.wanted("never_ready") and not stop.is_set():
        stop.wait(1.0)
    if not stop.is_set():
        handler = type("BoundHandler", (Handler,), {"engine": engine})
        with Server((options.host, options.port), handler) as server:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            print("INFO:     Application startup complete.", flush=True)
            while not stop.wait(0.05):
                if not processes.alive(engine.children[0]):
                    print(VANISHED, flush=True)
                    processes.stop_engine(engine.children[1:])
                    return 0
            server.shutdown()
    processes.stop_engine(engine.children)
    return 0
