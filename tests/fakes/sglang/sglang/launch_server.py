"""``python -m sglang.launch_server``: models, completions in a stream, and a cache that can be flushed."""

import argparse
import json
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sglang import STEP_MS


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    model = ""

    def log_message(self, template, *values):
        print(f"INFO:     {template % values}", flush=True)

    def _send(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        if self.path == "/v1/models":
            self._send(200, json.dumps({"data": [{"id": self.model, "root": "/model"}]}))
        else:
            self._send(200 if self.path == "/health" else 404, "")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.partition("?")[0] == "/flush_cache":
            self._send(200, "Cache flushed.\nPlease check backend logs for more details.\n")
        elif self.path == "/v1/completions":
            self._complete(json.loads(body))
        else:
            self._send(404, "")

    def _complete(self, asked):
        usage = {"prompt_tokens": len(asked["prompt"].split()), "completion_tokens": asked["max_tokens"]}
        if not asked["stream"]:
            time.sleep(STEP_MS * asked["max_tokens"] / 1e3)
            self._send(200, json.dumps({"choices": [{"text": "w"}], "usage": usage}))
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(asked["max_tokens"]):
            time.sleep(STEP_MS / 1e3)
            self._chunk(json.dumps({"choices": [{"text": "w "}], "usage": None}))
        self._chunk("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("host", "model-path", "served-model-name", "tokenizer-path", "mem-fraction-static"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--port", type=int)
    parser.add_argument("--random-seed", type=int)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    handler = type("Bound", (Handler,), {"model": options.served_model_name})
    ThreadingHTTPServer((options.host, options.port), handler).serve_forever(poll_interval=0.02)


if __name__ == "__main__":
    main()
