"""A pretend server of vLLM-Omni, of the standard library alone: speech, chat with sound, images.

It answers at the pace that it is told, so that what a real client measures can be compared with the truth.
Chunks are sent at points of time counted from the request's arrival: being late at one does not add up.
"""

from __future__ import annotations

import base64
import functools
import http.server
import io
import json
import math
import struct
import sys
import threading
import time
import wave
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

RATE = 24000
"""Samples a second, 16 bits, one channel."""


@dataclass(frozen=True)
class Told:
    """How the server answers.

    ``ttfp``: seconds to the first sound; ``rtf``: seconds of work per second of sound; ``seconds``: sound of
    an answer; ``chunks`` it comes in; ``image_seconds``: time of an image. ``fail_every``: each so manieth
    request is refused with 500; ``mute_every``: each so manieth has no sound; ``events``: speech is a stream
    of events although raw sound is asked for; ``broken``: a chat's stream tells of an error.
    """

    ttfp: float = 0.1
    rtf: float = 0.3
    seconds: float = 2.0
    chunks: int = 8
    tokens: int = 8
    image_seconds: float = 0.2
    fail_every: int = 0
    mute_every: int = 0
    events: bool = False
    broken: bool = False


@dataclass
class Counter:
    """Requests of work that came in, counted across threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: int = 0
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of each, in the order in which they came."""

    def next(self, path: str, body: dict[str, Any]) -> int:
        with self.lock:
            self.seen += 1
            self.bodies.append((path, body))
            return self.seen


@functools.lru_cache(maxsize=8)
def pcm(seconds: float) -> bytes:
    """A tone of 16-bit samples; made once, since making it takes longer than a chunk may."""
    count = round(seconds * RATE)
    return b"".join(struct.pack("<h", int(6000 * math.sin(i / 10))) for i in range(count))


def wav(sound: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(sound)
    return file.getvalue()


def png(width: int = 8, height: int = 8) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\x40\x80\xc0" * width) * height
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(kind, data)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )


class Handler(http.server.BaseHTTPRequestHandler):
    """One request; ``told``, ``counter`` and ``model`` are those of the server."""

    protocol_version = "HTTP/1.1"
    server: PretendOmni

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self.tell({"object": "list", "data": [{"id": self.server.model}]})
        return self.tell({}, 200 if self.path == "/health" else 404)

    def do_POST(self) -> None:
        came = time.perf_counter()
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_form = self.headers.get("Content-Type", "").startswith("multipart/form-data")
        body = {"form": len(raw)} if is_form else json.loads(raw or b"{}")
        told, number = self.server.told, self.server.counter.next(self.path, body)
        if told.fail_every and number % told.fail_every == 0:
            return self.tell({"error": {"message": "out of mana"}}, 500)
        mute = bool(told.mute_every and number % told.mute_every == 0)
        if self.path == "/v1/audio/speech":
            return self.speech(body, came, mute)
        if self.path == "/v1/chat/completions":
            return self.chat(body, came, mute)
        if self.path in ("/v1/images/generations", "/v1/images/edits"):
            return self.image(came)
        if self.path == "/v1/videos":
            return self.tell({"id": "video-1", "status": "queued"})
        return self.tell({"error": {"message": "no such path"}}, 404)

    def speech(self, body: dict[str, Any], came: float, mute: bool) -> None:
        events = self.server.told.events or body.get("stream_format") != "audio"
        self.begin("text/event-stream" if events else "audio/pcm")
        for moment, sound in () if mute else self.paced():
            self.wait(came, moment)
            data = {"type": "speech.audio.delta", "delta": base64.b64encode(sound).decode()}
            self.send(f"data: {json.dumps(data)}\n\n".encode() if events else sound)
        self.end()

    def chat(self, body: dict[str, Any], came: float, mute: bool) -> None:
        told = self.server.told
        sounds = "audio" in (body.get("modalities") or ["text", "audio"]) and not mute
        if "extra_body" in body:
            url = "data:image/png;base64," + base64.b64encode(png()).decode()
            content = [{"type": "image_url", "image_url": {"url": url}}]
            return self.tell({"choices": [{"message": {"role": "assistant", "content": content}}]})
        if not body.get("stream"):
            return self.whole(sounds)
        self.begin("text/event-stream")
        for token in range(told.tokens):
            self.wait(came, told.ttfp * (token + 1) / (told.tokens + 1))
            usage = {"prompt_tokens": 4, "completion_tokens": token + 1, "total_tokens": 5 + token}
            self.event({"modality": "text", "choices": [{"delta": {"content": " word"}}], "usage": usage})
        for moment, sound in self.paced() if sounds else ():
            self.wait(came, moment)
            content = base64.b64encode(wav(sound)).decode()
            self.event({"modality": "audio", "choices": [{"delta": {"content": content}}]})
        if told.broken:
            self.event({"error": {"message": "the talker has died"}})
        self.send(b"data: [DONE]\n\n")
        return self.end()

    def whole(self, sounds: bool) -> None:
        told = self.server.told
        choices: list[dict[str, Any]] = [{"index": 0, "message": {"role": "assistant", "content": "word"}}]
        if sounds:
            sound = base64.b64encode(wav(pcm(told.seconds))).decode()
            choices.append({"index": 1, "message": {"role": "assistant", "audio": {"data": sound}}})
        self.tell({"choices": choices, "usage": {"completion_tokens": told.tokens}})

    def image(self, came: float) -> None:
        self.wait(came, self.server.told.image_seconds)
        self.tell({"data": [{"b64_json": base64.b64encode(png()).decode()}]})

    def paced(self) -> Iterator[tuple[float, bytes]]:
        """Chunks of sound, with the seconds after the request at which each is sent."""
        told = self.server.told
        sound, end = pcm(told.seconds), told.rtf * told.seconds
        size = 2 * math.ceil(len(sound) / 2 / told.chunks)
        for index in range(told.chunks):
            share = index / max(1, told.chunks - 1)
            yield told.ttfp + share * (end - told.ttfp), sound[index * size : (index + 1) * size]

    @staticmethod
    def wait(came: float, seconds: float) -> None:
        time.sleep(max(0.0, came + seconds - time.perf_counter()))

    def begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, data: dict[str, Any]) -> None:
        self.send(f"data: {json.dumps(data)}\n\n".encode())

    def send(self, data: bytes) -> None:
        if data:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def tell(self, document: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class PretendOmni(http.server.ThreadingHTTPServer):
    """Listens on a port of the loopback that the system gives it; a context manager that serves."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, told: Told, model: str = "pretend", port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.told, self.model, self.counter = told, model, Counter()
        pcm(told.seconds)
        self.port: int = self.server_address[1]

    def __enter__(self) -> PretendOmni:
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


def main() -> None:
    """``PORT MODEL JSON``: serve there under that name, as :class:`Told` says, until ended."""
    port, model, told = sys.argv[1:]
    PretendOmni(Told(**json.loads(told)), model, int(port)).serve_forever()


if __name__ == "__main__":
    main()
