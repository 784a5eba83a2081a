"""Summaries of claims and of checks against a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfbisect.compare.documents import CompareDocument
from perfbisect.compare.report import build_report
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.report.markdown import report_markdown
from tests.compare.test_job import CHANGES, measured
from tests.jobs.world import Clock, World


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Jobs(tmp_path).new(Clock()(), "abcd")


def measured_with(job: Job, factor: float, tau: float = 0.005, **asked: Any) -> CompareDocument:
    return measured(job, World(CHANGES, 1, factor=factor, tau=tau), **asked)


def test_a_claim_that_holds_is_what_is_told_first_and_nothing_more_is_asked(job: Job) -> None:
    document = measured_with(job, 0.6, tau=0.05, expect="<= -20 %", blocks=1)
    assert document.claim == "holds"
    assert document.summary[0] == "The claim (tpot <= -20 % of B against A) holds."
    assert "time per output token, median -" in document.summary[1]
    assert not any("inconclusive" in text or "A verdict takes" in text for text in document.summary)
    assert document.next == f"perfbisect report {job.id}"
    assert report_markdown(build_report(document)).startswith(
        "# Comparison of 010101010101 against 000000000000 on tiny: claim holds\n"
    )


def test_a_claim_that_is_refuted(job: Job) -> None:
    document = measured_with(job, 1.0, tau=0.01, expect="<= -20 %")
    assert document.summary[0] == "The claim (tpot <= -20 % of B against A) is refuted."
    assert report_markdown(build_report(document)).startswith(
        "# Comparison of 010101010101 against 000000000000 on tiny: claim refuted\n"
    )


def test_a_guard_refutes_a_claim(job: Job) -> None:
    world = World(CHANGES, 1, factor=0.6, tau=0.005, tokens=lambda position: 32.0 - 12 * position)
    document = measured(job, world, expect="<= -20 %")
    assert document.summary[0].endswith("is refuted by a guard.")
    assert report_markdown(build_report(document)).startswith(
        "# Comparison of 010101010101 against 000000000000 on tiny: claim refuted by a guard\n"
    )


def test_a_claim_that_is_not_settled_says_what_would(job: Job) -> None:
    document = measured_with(job, 0.8, tau=0.1, expect="<= -20 %", blocks=1)
    assert document.claim == "inconclusive"
    assert document.summary[0] == "The claim (tpot <= -20 % of B against A) is neither confirmed nor refuted."
    assert report_markdown(build_report(document)).startswith(
        "# Comparison of 010101010101 against 000000000000 on tiny: inconclusive\n"
    )


@pytest.mark.parametrize(("factor", "claim"), [(2.0, "refuted"), (0.6, "holds")])
def test_a_check_that_is_settled_does_not_say_that_nothing_is_told(
    job: Job, factor: float, claim: str
) -> None:
    document = measured_with(job, factor, tau=0.05, max_regression=0.05, blocks=1)
    assert document.claim == claim
    assert not any("inconclusive" in text or "A verdict takes" in text for text in document.summary)
    assert document.summary[0].startswith("010101010101 against 000000000000: time per output token, median ")
    assert document.next.startswith("perfbisect bisect" if claim == "refuted" else "perfbisect report")
