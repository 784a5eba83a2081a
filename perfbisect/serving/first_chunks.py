"""TTFP by the server's own account: what the API server of vLLM-Omni logs of each answer with sound.

Logged since 0.22 (docs/omni.md). It begins where the API server takes a request and ends where the first
sound is ready to be sent, so what delays the client alone, or the sending, is not in it.
"""

from __future__ import annotations

import re
from typing import Final

from perfbisect.system.logs import without_colours

FIRST_CHUNK: Final = "audio_first_chunk"
LEAST_PERCENT: Final = 0.01
"""The percentile that is effectively the minimum; clients are asked for it with every run of sound."""

# From the beginning of a line to its end: an answer's text in the log cannot look like it.
_ANSWER = re.compile(
    r"(?:\([^()]*\)\s*)?INFO [\d-]+ [\d:.,]+ \[serving_speech\.py:\d+\] "
    r"\[SpeechE2E\] request_id=\S+ stream=true status=ok total_ms=[\d.]+ first_chunk_ms=(\d+(?:\.\d+)?)"
)


def read_first_chunks(log_text: str, requests: int) -> tuple[float, ...]:
    """Milliseconds of the last ``requests`` answers in a server's log; empty if it has fewer.

    The client's check and its warm-ups come before the requests that count.
    """
    answers = (_ANSWER.fullmatch(without_colours(line).rstrip()) for line in log_text.splitlines())
    times = [float(found[1]) for found in answers if found]
    return tuple(times[-requests:]) if 0 < requests <= len(times) else ()
