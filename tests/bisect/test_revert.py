"""``--confirm-revert``: the later end against itself less the culprit, on launches of its own."""

from __future__ import annotations

import pytest

from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult
from perfbisect.bisect.revert import RevertCheck
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure
from perfbisect.model.change import Change
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from tests.fixtures.jobs import Play, Start
from tests.jobs.world import PowerCut, World, history

LESS = Change("ee" * 20, "commit", 'Revert "Change 6"')


class Both(World):
    """The reverted end is as fast as the good one, times ``left``."""

    left = 1.0

    def run(self, request: AttemptRequest, **more):  # type: ignore[no-untyped-def]
        if request.change.id != LESS.id:
            return super().run(request, **more)
        end = self.changes[-1]
        self.changes = (*self.changes[:-1], LESS)
        slow, pace = self.slow, self.pace
        self.slow, self.pace = None, lambda _: self.left
        try:
            return super().run(request, **more)
        finally:
            self.changes, self.slow, self.pace = (*self.changes[:-1], end), slow, pace


def world_of(left: float = 1.0, **more: object) -> Both:
    made = Both(history(12).changes, slow=6, factor=1.3, **more)  # type: ignore[arg-type]
    made.left = left
    return made


def taken(head: Change, culprit: Change) -> Change | str:
    assert culprit.subject == "Change 6"
    assert head.subject == "Change 11"
    return LESS


def revert_launches(report: BisectResult) -> list[str]:
    return [x.change.id for x in report.launches if x.purpose == "revert"]


def test_the_step_is_gone_with_its_culprit(start: Start) -> None:
    world = world_of()
    begun = start(world, confirm_revert=True)
    report = begun.run(revert=taken)
    assert report.outcome == "found"
    assert report.revert.change == LESS and report.revert.verdict is not None
    assert report.revert.verdict.low < 1 / 1.3 - 1 < report.revert.verdict.high
    assert report.revert.note == ""
    assert any("the step is gone with it" in text for text in report.summary)
    used = revert_launches(report)
    assert 4 <= len(used) <= 16
    assert used.count(LESS.id) == used.count(world.changes[-1].id)
    assert begun.kinds[-2:] == ["revert", "verdict"]
    alone = world_of()
    without = start(alone).run()
    assert report.confirmed == without.confirmed, "nothing of it enters the search"
    assert report.beliefs == without.beliefs
    assert BisectResult.model_validate_json(report.text()) == report
    assert LESS.short in report_markdown(build_report(report))
    assert LESS.short in report_html(build_report(report))


def test_something_else_may_keep_the_later_end_slow(play: Play) -> None:
    world = world_of(left=1.3, tau=0.005, sigma=0.005)
    report = play(world, confirm_revert=True, revert=taken)
    assert report.outcome == "found"
    assert any("taking it back changes nothing there" in text for text in report.summary)


def test_a_conflict_is_said_and_no_failure(start: Start) -> None:
    world = world_of()
    begun = start(world, confirm_revert=True)
    report = begun.run(revert=lambda *_: "it does not revert cleanly: vllm/core.py")
    assert report.outcome == "found"
    assert report.revert.verdict is None
    assert report.revert.note == "it does not revert cleanly: vllm/core.py"
    assert "The culprit was not taken back: it does not revert cleanly: vllm/core.py." in report.summary
    assert revert_launches(report) == []


@pytest.mark.parametrize("phase", ["build", "launch"])
def test_a_reverted_tree_that_does_not_work_is_said(play: Play, phase: str) -> None:
    world = world_of()
    failure = Failure(phase, "change", "ImportError", "/log")  # type: ignore[arg-type]
    world.fault = lambda _, request: failure if request.change.id == LESS.id else None
    report = play(world, confirm_revert=True, revert=taken)
    assert report.outcome == "found"
    assert report.revert.verdict is None
    assert "ImportError" in report.revert.note
    assert revert_launches(report).count(LESS.id) == (1 if phase == "build" else 2)
    assert report.skips == ()


def test_a_cut_in_the_middle_of_it_goes_on(start: Start) -> None:
    world = world_of()
    done: list[str] = []

    def cut(_: int, request: AttemptRequest) -> BaseException | None:
        done.append(request.change.id)
        return PowerCut() if done.count(LESS.id) == 2 and request.change.id == LESS.id else None

    world.fault = cut
    begun = start(world, confirm_revert=True)
    begun.cut(revert=taken)
    report = begun.run(revert=lambda *_: pytest.fail("it was made before"))
    assert report.revert.verdict is not None
    assert [x.outcome for x in report.launches].count("abandoned") == 1


def test_it_can_be_asked_of_a_finished_job(start: Start) -> None:
    world = world_of()
    begun = start(world)
    first = begun.run()
    assert first.revert == RevertCheck()
    begun.amend(confirm_revert=True)
    again = begun.run(revert=taken)
    assert again.revert.verdict is not None
    assert again.culprit == first.culprit


def test_the_budget_ends_it(start: Start, play: Play) -> None:
    world = world_of()
    free = play(world)
    world = world_of()
    begun = start(world, confirm_revert=True, budget=free.minutes.total + 2.5)
    report = begun.run(revert=taken)
    assert report.outcome == "found"
    assert "is spent" in report.revert.note
    assert report.minutes.total <= free.minutes.total + 2.5
    assert sum(event.kind == "verdict" for event in begun.events) == 1


def test_of_a_set_nothing_is_taken_back(play: Play) -> None:
    world = world_of()
    failure = Failure("build", "change", "no", "/log")
    world.fault = lambda _, request: failure if request.change.id == world.changes[6].id else None
    report = play(world, confirm_revert=True, revert=taken)
    assert [p.index for p in report.culprits] == [6, 7]
    assert "cannot be distinguished" in report.revert.note
