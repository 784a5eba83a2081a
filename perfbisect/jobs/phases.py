"""The phase that a running launch ended last, on disk for whoever asks how far it is."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

FILE = "phase.json"
"""In the folder of an attempt, while it runs."""


class PhaseRecord(BaseModel):
    """``at``: when it ended, ISO 8601 in UTC; ``detail``: such as the number of the run."""

    model_config = ConfigDict(frozen=True)

    phase: str = ""
    detail: dict[str, object] = {}
    at: str = ""


def write_phase(folder: Path, record: PhaseRecord) -> None:
    """Write a phase; it is for display, so a full disk is left to the launch."""
    with contextlib.suppress(OSError):
        (folder / FILE).write_text(phase_text(record))


def phase_text(record: PhaseRecord) -> str:
    """A phase as a line of JSON."""
    return json.dumps(record.model_dump(), default=str) + "\n"


def read_phase(text: str | bytes) -> PhaseRecord | None:
    """A phase; None if it is not written yet, or half."""
    try:
        return PhaseRecord.model_validate_json(text)
    except ValidationError:
        return None
