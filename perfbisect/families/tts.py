"""Text to speech: vLLM-Omni with the speech API, judged by the time to the first packet of sound."""

from __future__ import annotations

from perfbisect.core.cell import Cell
from perfbisect.errors import UsageError
from perfbisect.families import Request
from perfbisect.families.requests import CHAT, SPEECH, chat, speech
from perfbisect.families.staged import StagedFamily


def first_request(cell: Cell, model: str) -> Request:
    """Sound by the speech API, or by chat where the cell asks there."""
    if cell.endpoint == SPEECH:
        return speech(cell, model)
    if cell.endpoint == CHAT:
        return chat(cell, model)
    raise UsageError(
        f"cell {cell.name}: endpoint of tts is {SPEECH} (or {CHAT}), not {cell.endpoint}", field="endpoint"
    )


FAMILY = StagedFamily("tts", "audio_ttfp", ("failed", "audio_duration"), first_request)
