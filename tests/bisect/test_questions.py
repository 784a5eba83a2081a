"""What a bisection can be asked beside the one step: a fix, every step, weights, another metric."""

from __future__ import annotations

import math

import pytest

from perfbisect.bisect.forecast import plan_document
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.result import BisectResult, result_for_metric
from perfbisect.changes.history import Branch
from perfbisect.environments.base import Refusal
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.estimates import Noise
from perfbisect.model.change import Change
from perfbisect.model.metric import parse_metric
from tests.fixtures.jobs import BegunJob, MakePlan, Play, Start
from tests.jobs.world import FakeBuilder, PowerCut, World, history, named


class TestFix:
    def test_the_change_that_made_it_better_is_named(self, play: Play) -> None:
        world = World(history(16).changes, slow=11, factor=1 / 1.3)
        report = play(world, direction="improvement")
        assert report.outcome == "found"
        assert named(report) == world.changes[11].id
        assert "better: -" in report.summary[0]
        assert report.good.id == world.changes[-1].id, "the later end is the good one"
        assert report.bad.id == world.changes[0].id
        assert "bad end, round 1" in report.launches[0].why
        assert report.launches[0].change.id == world.changes[0].id

    def test_a_regression_is_no_fix(self, play: Play) -> None:
        world = World(history(8).changes, slow=4, factor=1.3, tau=0.005)
        report = play(world, direction="improvement")
        assert report.outcome == "not reproduced"
        assert f"{world.changes[-1].short} is not better than {world.changes[0].short}" in report.summary[0]
        assert any("good end is worse than the bad end" in text for text in report.summary)

    def test_an_end_is_called_what_the_user_calls_it(self, plan_for: MakePlan) -> None:
        world = World(history(5).changes, slow=2)
        with pytest.raises(BuildError, match="the bad end 000000000000") as caught:
            plan_for(
                world,
                FakeBuilder(refused={world.changes[0].id: Refusal("no wheel")}),
                direction="improvement",
            )
        assert "--bad" in str(caught.value.next_step)


class Stairs(World):
    """Two steps: half of ``factor`` (of logs) at ``slow``, the rest at ``second``."""

    second = 0

    def _runs(self, request, position, rng):  # type: ignore[no-untyped-def]
        before = self.pace
        half = math.sqrt(self.factor)
        if self.slow is not None and position >= self.slow:
            self.pace = lambda r: before(r) / (half if position < self.second else 1.0)
        try:
            return super()._runs(request, position, rng)
        finally:
            self.pace = before


def test_every_step_is_named(play: Play) -> None:
    world = Stairs(history(10).changes, slow=3, factor=1.7, tau=0.01)
    world.second = 7
    report = play(world, all_steps=True)
    assert report.outcome == "found"
    assert [report.change(step.culprits[0]).id for step in report.steps] == [
        world.changes[3].id,
        world.changes[7].id,
    ]
    assert all(step.confirmed.low < math.sqrt(1.7) - 1 < step.confirmed.high for step in report.steps)
    assert any(text.startswith("2 steps of the range named") for text in report.summary)
    assert sum(text.startswith("Step ") for text in report.summary) == 2


class TestAnotherMetric:
    def measured(self, start: Start) -> tuple[BegunJob, BisectResult]:
        begun = start(World(history(16).changes, slow=11, factor=1.3))
        return begun, begun.run()

    def test_what_the_launches_support(self, start: Start) -> None:
        """p99 moves with the median in this world, so the same launches name the same change."""
        begun, first = self.measured(start)
        launched = len(begun.world.requests)
        report = result_for_metric(begun.job, begun.events, parse_metric("tpot:p99"))
        assert report.outcome == "found"
        assert report.culprit == first.culprit
        assert report.metric.name == "tpot:p99"
        assert report.confirmed is not None
        assert first.confirmed is not None
        assert report.confirmed.effect == pytest.approx(first.confirmed.effect)
        assert len(begun.world.requests) == launched, "nothing is launched"

    def test_what_they_do_not_settle_has_a_price(self, start: Start) -> None:
        world = World(history(30).changes, slow=21, factor=1.3)
        world.fault = lambda n, _: PowerCut() if n == 5 else None
        begun = start(world)
        begun.cut()
        report = result_for_metric(begun.job, begun.events, parse_metric("tpot:p99"))
        assert report.outcome == "inconclusive"
        assert "launches" in report.summary[0]
        assert "minutes" in report.summary[0]
        assert report.next == f"perfbisect resume {begun.job.id} --metric tpot:p99"
        assert BisectResult.model_validate_json(report.text()) == report

    def test_a_metric_that_nobody_reported(self, start: Start) -> None:
        begun, _ = self.measured(start)
        with pytest.raises(UsageError, match=r"do not report ttft:median; .*all report: failed, output_thr"):
            result_for_metric(begun.job, begun.events, parse_metric("ttft"))

    def test_measuring_goes_on_with_it(self, start: Start) -> None:
        begun, first = self.measured(start)
        begun.amend(metric=parse_metric("output_throughput"))
        report = begun.run()
        assert report.outcome == "found"
        assert report.metric.name == "output_throughput"
        assert report.culprit == first.culprit
        assert len(report.launches) == len(begun.world.requests)


class TestAside:
    """A good end on a release branch: position 0, then the merge base, then main."""

    def plan(self, plan_for: MakePlan, world: World, own: int = 2) -> BisectPlan:
        picks = tuple(Change(f"{i:x}" * 40, "commit", f"Pick {i}") for i in range(10, 10 + own))
        return plan_for(world, branch=Branch(fork=world.changes[1], own=picks, shared=(picks[0].id,)))

    def test_a_step_on_main_is_found_there(self, plan_for: MakePlan, start: Start) -> None:
        world = World(history(12).changes, slow=7, factor=1.3)
        report = start(world, plan=self.plan(plan_for, world)).run()
        assert named(report) == world.changes[7].id
        first = next(x for x in report.launches if x.purpose == "search")
        assert first.change.id == world.changes[1].id, "the merge base is the first probe"
        assert "merge base" in first.why
        assert report.cherry_picks == ()

    def test_a_step_before_the_merge_base_is_in_goods_own_commits(
        self, plan_for: MakePlan, start: Start
    ) -> None:
        world = World(history(12).changes, slow=1, factor=1.3)
        begun = start(world, plan=self.plan(plan_for, world))
        report = begun.run()
        assert report.outcome == "found"
        assert report.culprit is None, "the merge base is no culprit"
        assert [c.subject for c in report.cherry_picks] == ["Pick 10", "Pick 11"]
        assert f"{world.changes[0].short} has of its own (2 commits" in report.summary[0]
        assert "1 of them" in report.summary[0]
        assert report.next.startswith("git log --cherry-mark --left-only 000000000000...")

    def test_the_plan_tells_what_it_costs(self, plan_for: MakePlan) -> None:
        world = World(history(12).changes, slow=1)
        plan = self.plan(plan_for, world).model_copy(
            update={"all_steps": True, "confirm_revert": True, "workers": 2, "weights": "w.yaml"}
        )
        told = "\n".join(plan_document(plan, Noise(), basis="").notes)
        assert "000000000000 is no ancestor" in told
        assert "every step is named" in told
        assert "4 to 16 launches more" in told
        assert "weighed by w.yaml" in told
        assert "2 launches at once" in told


def test_weights_reach_the_core(plan_for: MakePlan) -> None:
    world = World(history(6).changes, slow=3)
    builder = FakeBuilder(merged=frozenset({world.changes[2].id}))
    plan = plan_for(world, builder, weigh=lambda positions: tuple(float(len(p.changes)) for p in positions))
    assert plan.search.prior == (1.0, 2.0, 1.0, 1.0, 1.0)
