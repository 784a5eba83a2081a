"""Canonical values and their digests: equal values have equal digests."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

_LENGTH = 20


def environment_key(*parts: object) -> str:
    """Twenty hex digits of JSON values, independent of the order of keys."""
    return text_digest(json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True))


def text_digest(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:_LENGTH]


def blob_id(data: bytes, like: str) -> str:
    """Git's object name of these bytes; ``like``: an object name of the repository (SHA-1 or SHA-256)."""
    kind = hashlib.sha256 if len(like) == 64 else hashlib.sha1
    return kind(b"blob %d\0" % len(data) + data).hexdigest()


def file_blob_id(path: Path, like: str) -> str:
    return blob_id(path.read_bytes(), like)


def canonical(value: object) -> object:
    """A value as plain JSON, one spelling each: 64.0 is 64, infinity ``"inf"``, tuples are lists, keys text.

    Raises:
        ValueError: NaN, or a type that JSON does not have.
    """
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("not a number (NaN) has no digest")
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    raise ValueError(f"{type(value).__name__} has no digest: {value!r}")


def canonical_json(value: object) -> str:
    return json.dumps(
        canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
