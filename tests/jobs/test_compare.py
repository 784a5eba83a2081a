"""The comparison as a job: verdict, guards, resuming, and what ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfbisect.core.attempt import Failure
from perfbisect.core.metric import parse_metric
from perfbisect.environments import Refusal
from perfbisect.errors import BuildError, Interrupted, ServerError, UsageError
from perfbisect.executors import AttemptRequest
from perfbisect.jobs.bisect import begin
from perfbisect.jobs.compare import compare, make_compare_plan
from perfbisect.jobs.compare_plan import ComparePlan, SidePlan
from perfbisect.jobs.plan import Setting
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.store.jobs import Job, Jobs
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell, history

CHANGES = history(2).changes
VARIANTS = {"async": {"serve_args": {"async-scheduling": True}}}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Jobs(tmp_path).new(Clock()(), "abcd")


def plan_of(**changed: Any) -> ComparePlan:
    known: dict[str, Any] = {
        "cell": cell(variants=VARIANTS),
        "a": SidePlan(text="main~1", change=CHANGES[0]),
        "b": SidePlan(text="main", change=CHANGES[1]),
        "builder": FakeBuilder(),
        "metric": parse_metric("tpot"),
        "setting": Setting(environment="fake:it"),
        "budget": 600.0,
        "blocks": 10,
    }
    return make_compare_plan(**known | changed)


def measured(job: Job, world: World, watch: Watch | None = None, **changed: Any) -> CompareDocument:
    tools = (watch or Watch()).tools(world)
    begin(job, plan_of(**changed), tools)
    with job.held():
        return compare(job, tools)


def test_a_slower_side_is_a_regression(job: Job) -> None:
    document = measured(job, World(CHANGES, 1, factor=1.1, tau=0.01))
    assert (document.word, document.headline) == ("regression", "regression")
    assert document.low is not None and document.high is not None
    assert document.low < 0.1 < document.high
    assert document.sentences[0].startswith("010101010101 against 000000000000: time per output token")
    assert "bisect tiny --good 000000000000 --bad 010101010101" in document.next
    assert [row.name for row in document.metrics if row.headline] == ["tpot"]
    assert {launch.change.short for launch in document.launches} == {"000000000000", "010101010101"}


def test_equal_sides_are_the_same(job: Job) -> None:
    document = measured(job, World(CHANGES, None, tau=0.01))
    assert document.word == "same"
    assert document.low is not None and document.high is not None
    assert max(abs(document.low), abs(document.high)) < document.smallest_effect


def test_shorter_answers_are_a_regression_by_guard(job: Job) -> None:
    world = World(CHANGES, 1, factor=0.8, tau=0.005, tokens=lambda position: 32.0 - 12 * position)
    document = measured(job, world)
    assert (document.word, document.headline) == ("regression", "improvement")
    guard = next(row for row in document.metrics if row.name == "output_tokens")
    assert (guard.guard, guard.word) == (True, "regression")
    assert any("moved for the worse" in text for text in document.sentences)


def test_metrics_that_disagree_stand_beside_each_other(job: Job) -> None:
    document = measured(job, World(CHANGES, 1, factor=1.2, tau=0.005))
    words = {row.name: row.word for row in document.metrics}
    assert words["tpot"] == words["output_throughput"] == "regression"
    assert next(row for row in document.metrics if row.name == "output_throughput").effect < 0


def test_noise_is_inconclusive_with_its_price(job: Job) -> None:
    document = measured(job, World(CHANGES, 1, factor=1.02, tau=0.12), blocks=2)
    assert document.word == "inconclusive"
    assert document.launches_a_side == 4
    assert any("would settle it" in text for text in document.sentences)


def test_the_budget_ends_it_without_a_verdict(job: Job) -> None:
    document = measured(job, World(CHANGES, 1, factor=1.02, tau=0.12), budget=8.0)
    assert document.word == "inconclusive"
    assert document.minutes.total <= 8.0


def test_it_goes_on_where_it_was_interrupted(job: Job) -> None:
    def cut(n: int, _: AttemptRequest) -> Interrupted | None:
        return Interrupted("now") if n == 4 else None

    with pytest.raises(Interrupted):
        measured(job, World(CHANGES, 1, factor=1.3, tau=0.02, fault=cut))
    watch = Watch()
    with job.held():
        document = compare(job, watch.tools(World(CHANGES, 1, factor=1.3, tau=0.02)))
    assert document.word == "regression"
    outcomes = [launch.outcome for launch in document.launches]
    assert outcomes.count("abandoned") == 1
    assert outcomes[3] == "abandoned"


def test_a_failure_of_the_machine_is_no_evidence(job: Job) -> None:
    def full(n: int, _: AttemptRequest) -> Failure | None:
        return Failure("launch", "machine", "no memory") if n in (2, 3) else None

    watch = Watch()
    document = measured(job, World(CHANGES, 1, factor=1.3, tau=0.02, fault=full), watch)
    assert document.word == "regression"
    assert [launch.fault for launch in document.launches].count("machine") == 2
    assert watch.waits


def test_a_side_that_does_not_serve_is_an_error(job: Job) -> None:
    def broken(_: int, request: AttemptRequest) -> Failure | None:
        return Failure("launch", "change", "it crashes") if request.change == CHANGES[1] else None

    with pytest.raises(ServerError, match=r"side b \(main\) does not serve: launch: it crashes"):
        measured(job, World(CHANGES, None, fault=broken))


def test_a_variant_of_one_change(job: Job) -> None:
    world = World(CHANGES, None, tau=0.01)
    side = SidePlan(text="main+async", change=CHANGES[0], variant="async")
    document = measured(job, world, b=side)
    assert document.b.name == "000000000000+async"
    served = {request.cell.variant: request.cell.serve_args for request in world.requests}
    assert served == {"": {}, "async": {"async-scheduling": True}}
    assert len({request.cell.digest for request in world.requests}) == 1


def test_the_same_twice() -> None:
    with pytest.raises(UsageError, match="are the same: one environment, one variant"):
        plan_of(b=SidePlan(text="main~1", change=CHANGES[0]))
    with pytest.raises(UsageError, match="are the same"):
        plan_of(builder=FakeBuilder(merged=frozenset({CHANGES[1].id})))


def test_a_side_that_cannot_be_built() -> None:
    refused = {CHANGES[1].id: Refusal("it changes compiled files")}
    with pytest.raises(BuildError, match="--b main cannot be built: it changes compiled files"):
        plan_of(builder=FakeBuilder(refused=refused))


def test_a_metric_that_is_not_reported(job: Job) -> None:
    with pytest.raises(UsageError, match="did not report ttft:median; it reported: "):
        measured(job, World(CHANGES, None), metric=parse_metric("ttft"))


def test_the_document_reads_itself(job: Job) -> None:
    document = measured(job, World(CHANGES, 1, factor=1.3, tau=0.02))
    assert document.finished
    assert CompareDocument.model_validate_json(document.text()) == document
