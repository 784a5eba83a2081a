"""Digests that name environments and files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_LENGTH = 20


def digest(*parts: object) -> str:
    """Twenty hex digits of JSON values; the order of keys in mappings does not matter."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def text_digest(text: str | bytes) -> str:
    """Twenty hex digits of a text."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:_LENGTH]


def blob_id(data: bytes, like: str) -> str:
    """The name git gives to these bytes; ``like``: an object name of the repository (SHA-1 or SHA-256)."""
    kind = hashlib.sha256 if len(like) == 64 else hashlib.sha1
    return kind(b"blob %d\0" % len(data) + data).hexdigest()


def file_blob_id(path: Path, like: str) -> str:
    """``blob_id`` of a file on disk."""
    return blob_id(path.read_bytes(), like)
