"""First requests for each endpoint of vLLM-Omni."""

from __future__ import annotations

import base64
import io
import math
import struct
import wave
import zlib
from collections.abc import Mapping
from types import MappingProxyType

from perfbisect.model.cell import Cell
from perfbisect.serving.families import ProbeRequest

RATE = 16000
"""Samples per second."""


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
    """A square PNG file with a horizontal gradient."""
    # Written by hand, without an image library; the byte before each row is its PNG filter: none.
    row = b"\0" + b"".join(bytes((255 * x // size, 96, 160)) for x in range(size))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * size)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def data_url(kind: str, content: bytes) -> str:
    """``data:image/png;base64,...``"""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


SPEECH = "/v1/audio/speech"
CHAT = "/v1/chat/completions"
IMAGES = "/v1/images/generations"
EDITS = "/v1/images/edits"
VIDEOS = "/v1/videos"

_TEXT = "The first request of an attempt must be answered."
_LEAST_SOUND = 4800
"""Bytes: a tenth of a second at 24 kHz, 16 bits, one channel."""
_STEPS = 2
"""Denoising steps: some pipelines run one less than requested, and zero is an error."""
_SHORT: Mapping[str, object] = MappingProxyType({"num_inference_steps": _STEPS})
_SHAPE = ("width", "height", "num_frames", "fps")
_FROM_IMAGE = ("i2i", "ti2i", "i2v", "ti2v")


def audible(cell: Cell) -> bool:
    """Whether responses have sound, by modality or requested metrics."""
    modalities = cell.extra_body.get("modalities")
    if isinstance(modalities, list):
        return "audio" in modalities
    return any(name.startswith("audio") for name in cell.percentile_metrics)


def speech(cell: Cell, model: str) -> ProbeRequest:
    """Streamed raw sound, as the client requests it."""
    extra: dict[str, object] = {}
    if cell.dataset_name == "seed-tts":
        extra = {
            "task_type": "Base",
            "ref_audio": data_url("audio/wav", tone()),
            "ref_text": "One steady tone.",
        }
    elif cell.dataset_name == "seed-tts-design":
        extra = {"task_type": "VoiceDesign", "instructions": "A calm voice."}
    body = {"model": model, "input": _TEXT, **extra, **cell.extra_body}
    # These override the cell's body: only the length of raw sound can be checked.
    streamed = {"stream": True, "stream_format": "audio", "response_format": "pcm"}
    return ProbeRequest(SPEECH, {**body, **streamed}, content_type="audio/", at_least=_LEAST_SOUND)


def chat(cell: Cell, model: str) -> ProbeRequest:
    """A chat, with sound if the cell has it."""
    sounds = audible(cell)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": _TEXT}]}],
        "max_tokens": 16,
        "temperature": 0,
        "modalities": ["text", "audio"] if sounds else ["text"],
        **cell.extra_body,
        "stream": False,
    }
    return ProbeRequest(CHAT, body, "choices.*.message.audio.data" if sounds else "choices.*.message.content")


def chat_image(
    cell: Cell,
    model: str,
    text: str = _TEXT,
    more: Mapping[str, object] = _SHORT,
    source_url: str | None = None,
) -> ProbeRequest:
    """An image from the chat API, with an input image if the task needs one."""
    prompt: object = text
    if cell.task in _FROM_IMAGE:
        url = source_url or data_url("image/png", picture())
        source = {"type": "image_url", "image_url": {"url": url}}
        prompt = [{"type": "text", "text": text}, source]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "extra_body": {**cell.extra_body, **shape(cell), **more},
    }
    return ProbeRequest(CHAT, body, "choices.*.message.content.*.image_url.url")


def image(cell: Cell, model: str, text: str = _TEXT, more: Mapping[str, object] = _SHORT) -> ProbeRequest:
    """An image from the images API."""
    body = {"model": model, "prompt": text, "n": 1, "response_format": "b64_json", **cell.extra_body}
    return ProbeRequest(IMAGES, {**body, **_size(cell), **more}, "data.0.b64_json")


def edit(cell: Cell, model: str, text: str = _TEXT, more: Mapping[str, object] = _SHORT) -> ProbeRequest:
    """An edited image (multipart form)."""
    body = {"model": model, "prompt": text, "response_format": "b64_json", **_form_fields(cell)}
    body |= {**_size(cell), **more, "image": picture()}
    return ProbeRequest(EDITS, body, "data.0.b64_json", form=True)


def video(cell: Cell, model: str) -> ProbeRequest:
    """A video job; the response only confirms that it was accepted."""
    body = {"model": model, "prompt": _TEXT, **_form_fields(cell), **shape(cell), **_SHORT}
    if cell.task in _FROM_IMAGE:
        body["input_reference"] = picture()
    return ProbeRequest(VIDEOS, body, "id", form=True)


def _form_fields(cell: Cell) -> dict[str, object]:
    return {name: value for name, value in cell.extra_body.items() if not isinstance(value, (dict, list))}


def shape(cell: Cell) -> dict[str, object]:
    """Width, height, frames and frame rate, if the cell sets them."""
    args = {name.replace("-", "_"): value for name, value in cell.dataset_args.items()}
    return {name: args[name] for name in _SHAPE if name in args}


def _size(cell: Cell) -> Mapping[str, object]:
    given = {**cell.extra_body, **shape(cell)}
    if "size" in given or not {"width", "height"} <= given.keys():
        return {}
    return {"size": f"{given['width']}x{given['height']}"}
