"""Guards that never varied: nothing failed on either side, every image has one size; and ones that did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.compare.documents import CompareDocument, MetricComparisonDocument
from perfbisect.compare.report import compare_report
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import RunResult
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from tests.compare.test_job import CHANGES, measured
from tests.jobs.world import Clock, World, cell

REQUESTS = 512


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Jobs(tmp_path).new(Clock()(), "abcd")


@dataclass
class Counting(World):
    """Launches whose runs count their requests, of which ``lost(position, k)`` failed in run k."""

    lost: Callable[[int, int], int] = lambda *_: 0

    def _runs(
        self, request: AttemptRequest, position: int, rng: np.random.Generator
    ) -> tuple[RunResult, ...]:
        runs = []
        for k, run in enumerate(super()._runs(request, position, rng)):
            lost = self.lost(position, k)
            values = {**run.values, "failed": lost / REQUESTS, "images": 1.0}
            facts = {"completed": REQUESTS - lost, "failed": lost}
            runs.append(replace(run, values=values, facts=facts))
        return tuple(runs)


def row_of(document: CompareDocument, name: str) -> MetricComparisonDocument:
    return next(row for row in document.metrics if row.name == name)


def test_no_failures_on_either_side_are_the_same_by_the_rule_of_three(job: Job) -> None:
    document = measured(job, Counting(CHANGES, 1, factor=1.3, tau=0.005))
    guard, each = row_of(document, "failed"), document.launches[0].values
    count = REQUESTS * document.launches_a_side * len(each)
    assert document.launches_a_side <= 4
    assert (guard.verdict, guard.effect, guard.left, guard.right) == ("same", 0.0, 0.0, 0.0)
    assert guard.high == -guard.low == pytest.approx(3 / count, rel=0.01)
    said = f"none of {count} in A, none of {count} in B"
    assert guard.note == said
    assert any(
        "failed" in text and f"same ({said})" in text for text in report_lines(compare_report(document))
    )
    assert f"same ({said})" in report_markdown(compare_report(document))


def test_a_guard_that_never_varied_did_not_move(job: Job) -> None:
    """Pixels and images are told apart at 0.1 %, below the least noise that the model knows."""
    world = Counting(CHANGES, 1, factor=1.3, tau=0.005)
    guard = row_of(measured(job, world, cell=cell(guards=("failed", "images"))), "images")
    assert (guard.guard, guard.verdict, guard.note) == (True, "same", "one value in every run")
    assert (guard.left, guard.right, guard.effect) == (1.0, 1.0, 0.0)


def test_a_rise_of_failures_is_still_a_regression(job: Job) -> None:
    world = Counting(CHANGES, None, tau=0.005, lost=lambda position, k: position * (10 + k))
    document = measured(job, world)
    assert (document.verdict, document.headline) == ("regression", "same")
    guard = row_of(document, "failed")
    assert (guard.verdict, guard.note) == ("regression", "")
    assert guard.low > 0


def test_a_single_failure_is_judged_by_launches(job: Job) -> None:
    """One run in which half a per cent failed: nothing is taken for granted any more."""
    told: list[int] = []

    def once(position: int, _: int) -> int:
        told.append(position)
        return 40 if len(told) == 3 else 0

    guard = row_of(measured(job, Counting(CHANGES, 1, factor=1.3, tau=0.005, lost=once)), "failed")
    assert guard.note == ""
    assert guard.low < 0 < guard.high


def test_a_guard_whose_median_launches_agree_is_not_named_as_open(job: Job) -> None:
    lost = iter([20])
    world = Counting(CHANGES, 1, factor=0.7, tau=0.005, lost=lambda *_: next(lost, 0))
    document = measured(job, world, blocks=2)
    guard = row_of(document, "failed")
    assert (document.verdict, document.launches_a_side, guard.verdict) == ("improvement", 4, "inconclusive")
    assert guard.left != guard.right
    assert not any("inconclusive" in text for text in document.summary)


@settings(max_examples=12)
@given(
    factor=st.floats(0.5, 2.0),
    tau=st.floats(0.001, 0.15),
    failures=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_every_row_shows_sides_whose_ratio_is_its_effect(
    tmp_path_factory: pytest.TempPathFactory,
    factor: float,
    tau: float,
    failures: list[int],
    blocks: int,
    seed: int,
) -> None:
    job = Jobs(tmp_path_factory.mktemp("jobs")).new(Clock()(), "abcd")
    world = Counting(
        CHANGES,
        1,
        factor=factor,
        tau=tau,
        seed=seed,
        lost=lambda position, k: failures[position] * k,
        tokens=lambda position: 32.0 - 5 * position,
    )
    document = measured(job, world, blocks=blocks)
    assert {"tpot", "tpot:p99", "output_throughput", "failed"} <= {row.name for row in document.metrics}
    for row in document.metrics:
        shown = row.right - row.left if row.absolute else row.right / row.left - 1
        assert shown == pytest.approx(row.effect, abs=1e-9), row.name
        assert row.low <= row.effect <= row.high, row.name
        if row.headline:
            assert row.effect == document.effect


def test_nothing_stands_beside_each_other_before_the_first_block(job: Job) -> None:
    document = measured(job, World(CHANGES, 1, tau=0.01), budget=2.0)
    assert 0 < len(document.launches) < 4
    assert (document.effect, document.metrics) == (None, ())
