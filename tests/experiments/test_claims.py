"""Claims: their files, whether an interval settles them, and what their comparisons say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.commands.comparisons import find_claim
from perfbisect.errors import LocatedError
from perfbisect.experiments.claims import parse_change
from perfbisect.jobs.folders import Job
from tests.experiments.factory import CHANGES, measured
from tests.jobs.world import World

TEXT = """\
claim: async scheduling gives 3 to 15 % more throughput
source: vLLM pull request 19970
cells: [text_ladder@c1-n32, text_ladder@c8-n64]
a: HEAD+sync
b: HEAD+async
expect:
  metric: output_throughput
  change: 3 .. 15 %
  guards: [failed, output_tokens]
"""


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        (">= 3 %", 0.03, math.inf),
        (">3%", 0.03, math.inf),
        ("<= -8 %", -1.0, -0.08),
        ("-1 to 1 %", -0.01, 0.01),
        ("+3% .. +15%", 0.03, 0.15),
    ],
)
def test_a_change_is_a_range_of_effects(text: str, low: float, high: float) -> None:
    change = parse_change(text)
    assert (change.low, change.high) == pytest.approx((low, high))


@pytest.mark.parametrize("text", ["", "faster", "3 %", ">= 3", ">= x %", "15 .. 3 %", "3 .. 3 %"])
def test_what_is_no_change(text: str) -> None:
    with pytest.raises(ValueError, match=r"no change|empty"):
        parse_change(text)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.031, 0.14, "holds"),
        (0.02, 0.05, "inconclusive"),
        (0.12, 0.18, "inconclusive"),
        (-0.02, 0.02, "refuted"),
        (0.16, 0.2, "refuted"),
        (math.nan, math.nan, "inconclusive"),
    ],
)
def test_three_to_fifteen_per_cent(low: float, high: float, word: str) -> None:
    assert parse_change("3 .. 15 %").settles(low, high) == word


@given(low=st.floats(-0.5, 0.5), width=st.floats(0, 0.3), shrink=st.floats(0, 1))
def test_a_narrower_interval_never_turns_what_was_settled(low: float, width: float, shrink: float) -> None:
    change = parse_change("3 .. 15 %")
    inner = change.settles(low, low + width * shrink)
    assert change.settles(low, low + width) in (inner, "inconclusive")


def test_a_claim_file(tmp_path: Path) -> None:
    path = tmp_path / "claim.yaml"
    path.write_text(TEXT)
    _, claim = find_claim(str(path))
    assert claim.cells_beside(path) == ("text_ladder@c1-n32", "text_ladder@c8-n64")
    assert (claim.a, claim.b) == ("HEAD+sync", "HEAD+async")
    assert (claim.expect.metric, claim.expect.change) == ("output_throughput", "3 .. 15 %")


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("source: vLLM pull request 19970\n", "", 1, "source: is missing"),
        ("metric: output_throughput", "metric: througput", 7, "unknown metric 'througput'; nearest:"),
        ("change: 3 .. 15 %", "change: faster", 8, "is no change; write"),
        ("guards: [failed, output_tokens]", "guards: [failled]", 9, "unknown metric 'failled'"),
        ("b: HEAD+async", "b: HEAD+sync", 1, "a and b are the same change"),
        ("cells: [", "cellls: [", 1, "cell"),
        ("cells: [text_ladder@c1-n32, text_ladder@c8-n64]", "cells: []", 1, "say which workload"),
        ("b: HEAD+async", "b: 7", 5, "b: expected text"),
    ],
)
def test_an_error_names_its_line(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    path = tmp_path / "claim.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(LocatedError) as caught:
        find_claim(str(path))
    assert said in caught.value.message
    assert caught.value.line is not None
    assert caught.value.line >= line


@pytest.mark.parametrize(
    ("world", "asked", "claim", "heading", "command"),
    [
        ({"factor": 0.6, "tau": 0.05}, {"expect": "<= -20 %", "blocks": 1}, "holds", "claim holds", "report"),
        ({"factor": 1.0, "tau": 0.01}, {"expect": "<= -20 %"}, "refuted", "claim refuted", "report"),
        (
            {"factor": 0.6, "tau": 0.005, "tokens": lambda position: 32.0 - 12 * position},
            {"expect": "<= -20 %"},
            "refuted",
            "claim refuted by a guard",
            "report",
        ),
        (
            {"factor": 0.8, "tau": 0.1},
            {"expect": "<= -20 %", "blocks": 1},
            "inconclusive",
            "inconclusive",
            "compare",
        ),
        ({"factor": 2.0, "tau": 0.05}, {"max_regression": 0.05, "blocks": 1}, "refuted", "failed", "bisect"),
        ({"factor": 0.6, "tau": 0.05}, {"max_regression": 0.05, "blocks": 1}, "holds", "passed", "report"),
    ],
)
def test_what_is_settled_asks_for_nothing_more(
    job: Job, world: dict[str, Any], asked: dict[str, Any], claim: str, heading: str, command: str
) -> None:
    result = measured(job, World(CHANGES, 1, **world), **asked)
    assert result.claim == claim
    sides = "010101010101 against 000000000000 on tiny"
    title = f"Check of {sides}" if "max_regression" in asked else f"Comparison of {sides}"
    assert result.report().heading == f"{title}: {heading}"
    assert result.next.startswith(f"perfbisect {command} ")
    open_question = any("inconclusive" in text or "A verdict takes" in text for text in result.summary)
    assert open_question == (claim == "inconclusive")
