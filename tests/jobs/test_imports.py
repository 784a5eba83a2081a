"""Launches of earlier jobs beside a comparison: shown, planned with, and no part of what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfbisect.core.metric import parse_metric
from perfbisect.errors import UsageError
from perfbisect.executors import AttemptRequest
from perfbisect.jobs.compare import compare
from perfbisect.jobs.compare_plan import ComparePlan, SidePlan
from perfbisect.jobs.compare_report import compare_document
from perfbisect.jobs.foresee import foresee
from perfbisect.jobs.imports import Imported, check_imports, imports_from, imports_of, take_in
from perfbisect.jobs.plan import begin
from perfbisect.jobs.run import make_run_plan, run
from perfbisect.jobs.setting import Setting
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import IMPORTED, compare_lines
from perfbisect.render.compare_report import compare_markdown
from perfbisect.store.jobs import Job, Jobs
from perfbisect.store.journal import read
from tests.jobs.test_compare import CHANGES, VARIANTS, plan_of
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell

Measured = Callable[..., Job]
SETTING = Setting(environment="fake:it")


@dataclass
class Counting(World):
    """Each run keeps the counts of its drafts, by position."""

    facts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def _runs(self, request: AttemptRequest, position: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
        return tuple(
            replace(made, facts=self.facts[position]) for made in super()._runs(request, position, rng)
        )


@pytest.fixture
def earlier(tmp_path: Path) -> Measured:
    """Jobs that measured one change."""
    clock = Clock()

    def measure(position: int, launches: int = 3, world: World | None = None, **changed: Any) -> Job:
        job = Jobs(tmp_path).new(clock(), f"{position:04d}")
        asked: dict[str, Any] = {
            "cell": cell(variants=VARIANTS),
            "change": CHANGES[position],
            "builder": FakeBuilder(),
            "metric": parse_metric("tpot"),
            "setting": SETTING,
            "launches": launches,
            "runs": 1,
        }
        tools = Watch().tools(world or World(CHANGES, 1, factor=1.1, tau=0.01, seed=7 + position))
        begin(job, make_run_plan(**asked | changed), tools.clock)
        with job.held():
            run(job, tools)
        return job

    return measure


def compared(folder: Path, plan: ComparePlan, found: tuple[Imported, ...], world: World) -> Job:
    job, tools = Jobs(folder).new(Clock()(), "cccc"), Watch().tools(world)
    begin(job, plan, tools.clock)
    take_in(job, found, Clock())
    with job.held():
        compare(job, tools)
    return job


def told(job: Job) -> CompareDocument:
    return compare_document(job, read(job.journal).events)


def test_the_launches_of_a_side_are_found(earlier: Measured) -> None:
    plan = plan_of()
    found = [*imports_from(earlier(0), plan), *imports_from(earlier(1, launches=2), plan)]
    assert [one.side for one in found] == ["a", "a", "a", "b", "b"]
    assert {one.attempt.change_id for one in found} == {change.id for change in CHANGES}


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_no_verdict_rests_on_them(tmp_path: Path, earlier: Measured, factor: float) -> None:
    """Whatever was measured earlier, also where it says the contrary."""
    plan = plan_of()
    liar = World(CHANGES, 0, factor=factor, tau=0.001)
    found = imports_from(earlier(0, launches=6, world=liar), plan)
    alone = told(compared(tmp_path / "alone", plan, (), World(CHANGES, 1, factor=1.1, tau=0.01)))
    job = compared(tmp_path / "beside", plan, found, World(CHANGES, 1, factor=1.1, tau=0.01))
    beside = told(job)
    for name in ("word", "headline", "effect", "low", "high", "needed_blocks", "sentences", "metrics"):
        assert getattr(beside, name) == getattr(alone, name)
    assert len(beside.launches) == len(alone.launches)
    assert alone.imported == ()
    (shown,) = beside.imported
    assert (shown.side, shown.launches, shown.runs) == ("a", 6, 6)
    assert imports_of(read(job.journal).events) == found
    assert f"  {IMPORTED}" in compare_lines(beside)
    assert "no part of the verdict or its interval" in compare_markdown(beside)
    assert "imported" not in compare_markdown(alone)


def test_another_workload_is_refused_with_its_fields(earlier: Measured) -> None:
    job = earlier(0, cell=cell(variants=VARIANTS, num_prompts=11, max_concurrency=4))
    said = r"another workload \(cell_digest\): max_concurrency 4 there, 1 here; num_prompts 11 there, 10 here"
    with pytest.raises(UsageError, match=said):
        imports_from(job, plan_of())


def test_a_job_of_neither_side_is_refused(earlier: Measured) -> None:
    async_side = SidePlan(text="main+async", change=CHANGES[0], variant="async")
    plan = plan_of(a=async_side, b=SidePlan(text="main", change=CHANGES[1], variant="async"))
    with pytest.raises(UsageError, match=r"none of its launches is of 0{12}\+async or (01){6}\+async"):
        imports_from(earlier(0), plan)
    assert imports_from(earlier(0), plan_of(a=async_side, b=SidePlan(text="main", change=CHANGES[0])))


def test_a_comparison_may_be_imported_by_its_sides(tmp_path: Path) -> None:
    plan = plan_of(blocks=1)
    job = compared(tmp_path, plan, (), World(CHANGES, 1, factor=1.3, tau=0.01))
    turned = plan_of(a=plan.b, b=plan.a)
    assert sorted(one.side for one in imports_from(job, turned)) == ["a", "a", "b", "b"]
    ours = {one.side: one.attempt.change_id for one in imports_from(job, turned)}
    assert ours == {"a": CHANGES[1].id, "b": CHANGES[0].id}


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"machine_class": "H200 x 1"}, "machine_class was 'toy' there and is 'H200 x 1' here"),
        ({"client": ("other client", "")}, "client_digest was 'toy client' there and is 'other client' here"),
        ({"machine_class": "toy", "client": ("toy client", "")}, ""),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_field(
    earlier: Measured, here: dict[str, Any], said: str
) -> None:
    found = imports_from(earlier(0), plan_of())
    if not said:
        check_imports(found, **here)
        return
    with pytest.raises(UsageError, match=said):
        check_imports(found, **here)


def test_a_client_of_the_same_era_is_the_same_instrument(earlier: Measured) -> None:
    (one, *_) = imports_from(earlier(0), plan_of())
    known = replace(one, attempt=replace(
        one.attempt, provenance=replace(one.attempt.provenance, client_era="since #4461")
    ))  # fmt: skip
    check_imports([known], client=("another digest", "since #4461"))
    with pytest.raises(UsageError, match="client_digest"):
        check_imports([known], client=("another digest", "since #4679"))


def test_a_client_that_is_known_late_is_refused_then(tmp_path: Path, earlier: Measured) -> None:
    found = imports_from(earlier(0), plan_of())
    with pytest.raises(UsageError, match="client_digest was 'toy client' there and is 'new client' here"):
        compared(tmp_path / "late", plan_of(), found, World(CHANGES, 1, client_digest="new client"))


def test_they_tell_how_many_blocks_to_expect(earlier: Measured) -> None:
    plan = plan_of()
    calm = World(CHANGES, None, tau=0.001, sigma=0.001)
    found = (*imports_from(earlier(0, 3, calm), plan), *imports_from(earlier(1, 3, calm), plan))
    wild = World(CHANGES, None, tau=0.2, sigma=0.001)
    loud = (*imports_from(earlier(0, 3, wild), plan), *imports_from(earlier(1, 3, wild), plan))
    assert foresee(plan, found, ()).blocks == 1
    assert foresee(plan, loud, ()).blocks is None
    assert "from 6 imported ones" in foresee(plan, found, ()).told
    assert "assumed: 3 % between runs" in foresee(plan, (), ()).told
    assert "own bounds" in foresee(plan_of(expect=">= 3 %"), (), ()).told


DRAFTS = {
    0: {"accepted_tokens": 1024, "draft_tokens": 2034},
    1: {"accepted_tokens": 656, "draft_tokens": 2094},
}


def test_shares_of_single_imported_runs_are_compared_by_counting_and_marked_so(
    tmp_path: Path, earlier: Measured
) -> None:
    asked = cell(variants=VARIANTS, guards=("failed", "spec_decode_acceptance_rate"))
    plan, world = plan_of(cell=asked), Counting(CHANGES, None, facts=DRAFTS)
    jobs = [earlier(position, 1, world, cell=asked) for position in (0, 1)]
    found = tuple(one for job in jobs for one in imports_from(job, plan))
    document = told(compared(tmp_path / "new", plan, found, World(CHANGES, None, tau=0.01)))
    (share,) = document.single_runs
    assert (share.left, share.right) == ((1024, 2034), (656, 2094))
    # Newcombe's, from the Wilson intervals: 29.38 to 33.35 % around 31.33, 48.17 to 52.51 % around 50.34.
    assert (share.difference, share.low, share.high) == pytest.approx((-0.1902, -0.2193, -0.1605), abs=1e-4)
    text = next(line for line in compare_lines(document) if "1024 of 2034" in line)
    assert "single imported runs" in text and "by counting alone" in text
    assert document.word == "same"


def test_several_runs_are_no_single_one(tmp_path: Path, earlier: Measured) -> None:
    asked = cell(variants=VARIANTS, guards=("failed", "spec_decode_acceptance_rate"))
    plan, world = plan_of(cell=asked), Counting(CHANGES, None, facts=DRAFTS)
    jobs = [earlier(0, 2, world, cell=asked), earlier(1, 1, world, cell=asked)]
    found = tuple(one for job in jobs for one in imports_from(job, plan))
    document = told(compared(tmp_path / "new", plan, found, World(CHANGES, None, tau=0.01)))
    assert document.single_runs == ()
