"""What a report says of phases."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.report.document import Report, Section, Verdict
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.phases import (
    PhasesDocument,
    moved_sentences,
    phase_blocks,
    phase_sentences,
)
from perfbisect.report.terminal import report_lines
from perfbisect.stats.phases import PhaseDifference


def phase(name: str, verdict: str, difference: float = 0.0, **more: Any) -> PhaseDifference:
    known = {"low": difference - 1.5, "high": difference + 1.5, "kind": "time", "unit": "ms a request"}
    given = {"name": name, "verdict": verdict, "difference": difference, "a": 14.0, "b": 14.0 + difference}
    return PhaseDifference(**{**known, **given, "stage": "", "smallest": 0.5, **more})


def phases(*rows: PhaseDifference) -> PhasesDocument:
    return PhasesDocument(a="parent", b="culprit", launches_a=4, launches_b=5, phases=rows)


DECODE = phase("decode", "moved", 9.8, unit="ms a step")
SERVER = phase("api_server", "unchanged", 0.1, kind="cpu", unit="CPU ms a request")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            (phase("queue", "unchanged"), phase("prefill", "unchanged"), DECODE, SERVER),
            "Decode +9.80 ms a step (+8.30 to +11.3); queue and prefill unchanged; API server CPU as before.",
        ),
        (
            (phase("prefill", "moved", -5.0), phase("outside the core", "open"), DECODE),
            "Prefill -5.00 ms a request (-6.50 to -3.50), decode +9.80 ms a step (+8.30 to +11.3); "
            "no difference seen in outside the core.",
        ),
        (
            (
                phase("decode", "unchanged"),
                phase("tokens", "moved", 3.0, kind="work", unit="an iteration", stage="talker"),
                phase("iterations", "unchanged", kind="work"),
                phase("worker", "open", kind="cpu"),
            ),
            "Decode unchanged; talker: tokens +3.00 an iteration (+1.50 to +4.50); iterations unchanged; "
            "no difference seen in workers CPU.",
        ),
        (
            (phase("decode", "open", 3.16, unit="ms a step"), phase("queue", "open")),
            "Likely decode +3.16 ms a step (+1.66 to +4.66); no difference seen in queue.",
        ),
        (
            (phase("decode", "unknown", 2.0, unit="ms a step", low=None, high=None),),
            "Decode +2.00 ms a step (one launch a side: no interval).",
        ),
        (
            (phase("queue", "unchanged", stage="0"), phase("chunk transfer", "moved", 9.8, stage="1")),
            "Stage 1: chunk transfer +9.80 ms a request (+8.30 to +11.3); stage 0: queue unchanged.",
        ),
        ((phase("iterations", "unchanged", kind="work"),), ""),
    ],
)
def test_sentences(rows: tuple[PhaseDifference, ...], text: str) -> None:
    assert " ".join(phase_sentences(phases(*rows))) == text


def test_a_summary_has_a_sentence_where_a_phase_moved_and_nothing_without_counters() -> None:
    assert moved_sentences(None) == ()
    assert moved_sentences(phases(SERVER)) == ()
    (sentence,) = moved_sentences(phases(DECODE, SERVER))
    assert sentence.startswith("Decode +9.80 ms a step")


def test_every_format_has_the_sentence_and_the_table() -> None:
    report = Report("Why", Verdict("found"), (), (Section("Phases", phase_blocks(phases(DECODE, SERVER))),))
    for text in ("\n".join(report_lines(report)), report_markdown(report), report_html(report)):
        assert "+9.80 ms a step (+8.30 to +11.3)" in text
        assert "engine core" not in text.split("From the engine's")[0]
        for cell in ("decode", "23.80", "+8.30 to +11.3", "moved", "API server", "unchanged"):
            assert cell in text
        assert "4 launches of parent, 5 of culprit" in text
