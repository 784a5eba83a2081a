"""The evidence behind a cause in sentences."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from perfbisect.series.cause_text import evidence_sentence
from perfbisect.series.causes import Evidence, EvidenceKind


@pytest.mark.parametrize("kind", get_args(EvidenceKind))
def test_every_kind_has_a_sentence(kind: EvidenceKind) -> None:
    assert evidence_sentence(Evidence(kind))


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        (
            Evidence("label changed", name="hardware", old="H100", new="H20"),
            "hardware: H100 before, H20 after",
        ),
        (
            Evidence("count falls short", name="output_tokens", before=50.0, after=55.0, shift=math.log(3)),
            "output tokens: 50 before, 55 after, which does not explain 3 times",
        ),
        (
            Evidence("keys removed", names=("a", "b", "c", "d", "e")),
            "the client reports a, b, c and 2 more no longer",
        ),
        (Evidence("keys added", names=("a",)), "the client reports a from here on"),
        (
            Evidence("servers moved", count=3, total=4, moved_controls=1, controls=2),
            "3 of 4 servers moved together; of the controls (low concurrency, stage times) 1 of 2",
        ),
        (Evidence("servers moved", count=3, total=4), "3 of 4 servers moved together"),
        (
            Evidence("size of one night", shift=0.2, deviations=4.2),
            "one night long: +22.1 %, 4 standard deviations of its nights",
        ),
        (
            Evidence("shared trait", names=("chunk", "x"), count=2, shift=math.log(1.04)),
            "every server that moved runs chunk and x, none of the 2 others does; they moved by 4 % at most",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Evidence) else "",
)
def test_the_numbers_stand_in_the_sentence(evidence: Evidence, sentence: str) -> None:
    assert evidence_sentence(evidence) == sentence
