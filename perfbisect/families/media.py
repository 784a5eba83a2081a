"""The smallest sound and picture that a model takes as input: made here, the same every time."""

from __future__ import annotations

import base64
import io
import math
import struct
import wave
import zlib

RATE = 16000
"""Samples a second of the sound."""


def tone(seconds: float = 1.0, hertz: float = 220.0) -> bytes:
    """A WAV file: one channel of 16 bits, a steady tone."""
    count = int(seconds * RATE)
    samples = (int(8000 * math.sin(2 * math.pi * hertz * i / RATE)) for i in range(count))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return file.getvalue()


def picture(size: int = 64) -> bytes:
    """A PNG file of ``size`` x ``size`` pixels, in one colour from left to right ever brighter."""
    row = b"\0" + b"".join(bytes((255 * x // size, 96, 160)) for x in range(size))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * size)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def data_url(kind: str, content: bytes) -> str:
    """``data:image/png;base64,...``, as a request carries a file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
