"""How large the documents are that a program reads while it waits for a bisection of many commits."""

from __future__ import annotations

from datetime import datetime, timezone

from perfbisect.bisect.forecast import PlanDocument, plan_document
from perfbisect.commands.status import status_document
from perfbisect.jobs.estimates import learnt_noise
from tests.fixtures.jobs import MakePlan, Start
from tests.jobs.world import World, history

SMALL = 20_000
COMMITS, SLOW = 200, 140


def planned(plan_for: MakePlan, commits: int) -> PlanDocument:
    plan = plan_for(World(history(commits).changes, slow=2))
    return plan_document(plan, learnt_noise((), plan.ref), basis="")


def test_a_plan_tells_which_changes_can_be_tested(plan_for: MakePlan) -> None:
    plan = planned(plan_for, 25)
    assert plan.brief() == plan
    long = planned(plan_for, 200)
    brief = long.brief()
    assert brief.positions == long.positions[:30]
    assert brief.left_out == {"positions": 170}
    assert brief.notes[-1] == "left out here: 170 of positions; --full brings them"


def test_a_bisection_of_many_commits_is_told_briefly(plan_for: MakePlan, start: Start) -> None:
    world = World(history(COMMITS).changes, slow=SLOW, factor=1.1)
    plan = plan_for(world)
    begun = start(world, plan=plan)
    report = begun.run()
    assert report.outcome == "found"
    for whole in (plan_document(plan, learnt_noise((), plan.ref), basis=""), report):
        assert len(whole.brief().text()) < SMALL < len(whole.text())
    brief = report.brief()
    assert report.beliefs is not None
    assert max(report.probability, report.beliefs.none, *report.beliefs.p) <= 0.99
    assert brief.left_out["history"] + len(brief.history) == brief.left_out["beliefs.p"] == COMMITS
    assert [position.index for position in brief.history] == [SLOW - 1, SLOW], "parent and culprit"
    assert len(brief.launches) + brief.left_out["launches"] == len(report.launches)
    assert brief.launches == report.launches[-len(brief.launches) :]
    decided = {"left_out", "launches", "history", "merged", "not_tested", "beliefs"}
    assert brief.model_dump(exclude=decided) == report.model_dump(exclude=decided)
    status = status_document(begun.job, datetime.now(timezone.utc))
    assert len(status.text()) < SMALL / 4
    assert (status.launches, status.outcome, status.exit_code) == (len(report.launches), "found", 3)
    assert 0.5 < status.leading[0].probability <= 0.99
    assert status.leading[0].change == (report.culprit.short if report.culprit else "")
