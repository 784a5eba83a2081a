"""The server's own TTFP in the log of vLLM-Omni 0.30.0."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.clients.base import request_statistics
from perfbisect.serving.first_chunks import read_first_chunks

LOG = (Path(__file__).parent / "omni_speech.log").read_text()
TIMES = (161.90, 224.83, 746.60, 204.20, 383.20, 130.79, 191.33, 207.12, 1447.40)
"""Of its nine answers: a warm-up, then those of a run."""


def test_the_last_answers_of_a_log_are_those_of_the_run() -> None:
    assert read_first_chunks(LOG, 9) == TIMES
    assert read_first_chunks(LOG, 8) == TIMES[1:]


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("", 1),
        (LOG, 0),
        # An older server, or a part of the log: some of the requests say nothing of the others.
        (LOG, 10),
        (LOG.replace("first_chunk_ms", "chunks"), 1),
        (LOG.replace("status=ok", "status=cancelled"), 1),
        (LOG.replace("first_chunk_ms=", "first_chunk_ms=NA"), 1),
    ],
)
def test_a_log_without_them_all_gives_none(text: str, requests: int) -> None:
    assert read_first_chunks(text, requests) == ()
    assert request_statistics("ttft", (), [50.0]) == {}


def test_a_prompt_in_the_log_is_no_answer() -> None:
    said = "[SpeechE2E] request_id=a stream=true status=ok total_ms=2.00 first_chunk_ms=1.00"
    prefix = "INFO 11-27 23:23:53 [serving_speech.py:1751] "
    assert read_first_chunks(f"{prefix}{said}\n", 1) == (1.0,)
    for line in (said, f"{prefix}prompt: '{said}'", f"{prefix}{said} of a prompt", f"prompt: {prefix}{said}"):
        assert read_first_chunks(f"{LOG}{line}\n", 1) == TIMES[-1:]


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40), st.floats(0.01, 99.9))
def test_statistics_are_those_of_the_client(times: list[float], percentile: float) -> None:
    """The client has numpy's percentiles."""
    values = request_statistics("ttft", times, [0.01, percentile])
    assert values["ttft:median"] == median(times)
    for percent in (0.01, percentile):
        expected = float(np.percentile(times, percent))
        assert values[f"ttft:p{percent:g}"] == pytest.approx(expected)
